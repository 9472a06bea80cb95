package config

import (
	"cmp"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var sourceSchemes = []scheme{
	{prefix: "postgres://", driver: "postgres", example: "postgres://user:password@host/database", port: "5432", check: postgresServer},
	{prefix: "postgresql://", driver: "postgres", example: "postgresql://user:password@host/database", port: "5432", check: postgresServer},
	{prefix: "sqlite://", driver: "sqlite", example: "sqlite:///path.db", port: "1", check: address.isFile},
	{prefix: "mysql://", planned: true},
}

func postgresServer(a address) error {
	if a.query.Has("host") { // the directory of a Unix socket
		return nil
	}
	return a.someHosts()
}

// sourceURL reads source.url and sets the driver by its scheme.
type sourceURL struct{ *Source }

func (s sourceURL) expects() string {
	return "postgres://user:password@host/database or sqlite:///path.db"
}

func (s sourceURL) read(r *reader, e entry) {
	s.Place = r.place(e.node)
	scalar{what: s.expects(), kind: asText, hide: true, url: true, set: s.set}.read(r, e)
}

func (s sourceURL) set(in input) error {
	found, a, err := parseURL(in, sourceSchemes)
	s.Driver = found.driver
	if err != nil {
		return err
	}
	s.URL = newSecretURL(in)
	if s.Driver == "sqlite" {
		if sqliteMissing != nil {
			return sqliteMissing
		}
		s.Path, err = a.filePath()
	}
	return err
}

// identity is equal for two sources with the same table.
func (s *Source) identity() string { return s.identityOf(s.Table) }

// database is equal for two sources in the same database.
func (s *Source) database() string { return s.identityOf("") }

// tableIdentity is equal for two names of the same table in the source's database.
func (s *Source) tableIdentity(table string) string {
	if s.Driver == "sqlite" {
		return strings.ToLower(table)
	}
	schema, name, _ := buffer.SplitTable(table)
	return buffer.QuoteName(cmp.Or(schema, "public")) + "." + buffer.QuoteName(name)
}

// identityOf is the identity of another table in the source's database.
func (s *Source) identityOf(table string) string {
	if s.Driver == "sqlite" {
		return s.Path + " " + s.tableIdentity(table)
	}
	_, a, err := parseURL(literal(s.URL.Reveal()), sourceSchemes)
	if err != nil { // already reported
		return ""
	}
	hosts := a.hosts
	for i, h := range hosts {
		if colon := strings.LastIndex(h, ":"); isLoopback(h[:colon]) {
			hosts[i] = "localhost" + h[colon:]
		}
	}
	// libpq's parameters override the rest of the URL. The default database has the name of the user.
	where := strings.Join(hosts, ",")
	if a.query.Has("host") || a.query.Has("port") {
		where += "?" + a.query.Get("host") + ":" + a.query.Get("port")
	}
	database := cmp.Or(a.query.Get("dbname"), a.query.Get("database"),
		strings.TrimPrefix(a.path, "/"), a.query.Get("user"), a.user)
	return where + "/" + database + " " + s.tableIdentity(table)
}
