package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

var sinkSchemes = []scheme{
	{prefix: "redis://", driver: "redis", example: "redis://host:6379/0", port: "6379", check: redisServer},
	{prefix: "rediss://", driver: "redis", example: "rediss://host:6379/0", port: "6379", check: redisServer},
	{prefix: "redis+cluster://", driver: "redis", example: "redis+cluster://host1,host2", port: "6379", check: redisCluster},
	{prefix: "rediss+cluster://", driver: "redis", example: "rediss+cluster://host1,host2", port: "6379", check: redisCluster},
	{prefix: "redis+sentinel://", driver: "redis", example: "redis+sentinel://host1,host2/MASTER/0", port: "26379", check: redisSentinel},
	{prefix: "rediss+sentinel://", driver: "redis", example: "rediss+sentinel://host1,host2/MASTER/0", port: "26379", check: redisSentinel},
	{prefix: "nats://", driver: "nats", example: "nats://host:4222", port: "4222", check: natsServers},
	{prefix: "tls+nats://", driver: "nats", example: "tls+nats://host:4222", port: "4222", check: natsServers},
	{prefix: "http://", driver: "http", example: "http://host/path", port: "80", check: httpServer},
	{prefix: "https://", driver: "http", example: "https://host/path", port: "443", check: httpServer},
	{prefix: "postgres://", driver: "postgres", example: "postgres://user:password@host/database?table=inbox", port: "5432", check: postgresTable},
	{prefix: "postgresql://", driver: "postgres", example: "postgresql://user:password@host/database?table=inbox", port: "5432", check: postgresTable},
	{prefix: "file://", driver: "file", example: "file:///path", port: "1", check: address.isFile},
	{prefix: "stdout:", driver: "file", example: "stdout:", port: "1", check: address.isEmpty},
}

func redisServer(a address) error { return cmp.Or(a.oneHost(), databaseNumber(a.path), a.noQuery()) }

func redisCluster(a address) error {
	if a.path == "/0" { // the only database of a cluster
		a.path = ""
	}
	return cmp.Or(a.someHosts(), a.noPath(), a.noQuery())
}

func redisSentinel(a address) error {
	master, database, _ := strings.Cut(strings.TrimPrefix(a.path, "/"), "/")
	if master == "" {
		return cmp.Or(a.someHosts(), errPath)
	}
	return cmp.Or(a.someHosts(), databaseNumber(database), a.noQuery())
}

func natsServers(a address) error { return cmp.Or(a.someHosts(), a.noPath(), a.noQuery()) }

var errTable = errors.New("has no ?table=NAME")

func postgresTable(a address) error {
	if _, name, ok := buffer.SplitTable(a.query.Get("table")); !ok || name == "" {
		return cmp.Or(postgresServer(a), errTable)
	}
	return postgresServer(a)
}

var errBrace = errors.New("has a brace other than {topic} and {key}")

func httpServer(a address) error {
	if _, err := sink.ParseTemplate(a.tail, false); err != nil {
		return errBrace
	}
	return a.oneHost()
}

// sinkURL reads sink.url and sets the driver by its scheme.
type sinkURL struct{ *Sink }

func (s sinkURL) expects() string { return "a URL like redis://host:6379/0 or nats://host:4222" }

func (s sinkURL) read(r *reader, e entry) {
	s.Place = r.place(e.node)
	scalar{what: s.expects(), kind: asText, hide: true, url: true, set: s.set}.read(r, e)
}

func (s sinkURL) set(in input) error {
	found, a, err := parseURL(in, schemesOfSinks())
	s.Driver = found.driver
	if found.prefix == "" && strings.Contains(in.text, "://") {
		return fmt.Errorf("%w (a sink of your own: use the program that registers it, docs/embedding.md#a-sink-of-your-own)", err)
	}
	if err != nil {
		return err
	}
	s.URL = newSecretURL(in)
	if found.prefix == "file://" {
		s.File.Path, err = a.filePath()
	}
	return err
}

var (
	placeholders = strings.NewReplacer("{topic}", "t", "{key}", "k")
	// mistyped matches a wrong placeholder, which would be taken as a hash tag.
	mistyped = regexp.MustCompile(`(?i)\{\s*(topic|key)s?\s*\}`)
	// tagged matches text with at most one hash tag.
	tagged = regexp.MustCompile(`^[^{}]*(\{[^{}]+\}[^{}]*)?$`)
	// subjects matches tokens between dots, without wildcards.
	subjects = regexp.MustCompile(`^[^\s.*>{}]+(\.[^\s.*>{}]+)*$`)
)

// redisKey is a template of the name of a stream or list.
func redisKey(into *string) scalar {
	return text(into, "a name of text, {topic}, {key} and at most one {hash tag}", func(s string) bool {
		s = placeholders.Replace(s)
		return s != "" && tagged.MatchString(s) && !mistyped.MatchString(s)
	})
}

// channel is a template of the name of a channel.
func channel(into *string) scalar {
	return text(into, "a name of text, {topic} and {key}", func(s string) bool {
		s = placeholders.Replace(s)
		return s != "" && !strings.ContainsAny(s, "{}")
	})
}

// subject is a template of a NATS subject.
func subject(into *string) scalar {
	return text(into, "a subject like orders.{topic}, without spaces and wildcards", func(s string) bool {
		return subjects.MatchString(placeholders.Replace(s))
	})
}

// sinkFormat is a choice that depends on the driver.
type sinkFormat struct{ *Sink }

func (f sinkFormat) choice() (formats scalar, def string) {
	if f.Driver == "nats" {
		return choice(&f.NATS.Format, "payload", "cloudevents"), "payload"
	}
	return choice(&f.HTTP.Format, "json", "ndjson", "array", "form", "cloudevents", "cloudevents-binary"), "json"
}

func (f sinkFormat) expects() string {
	formats, _ := f.choice()
	return formats.expects()
}

func (f sinkFormat) read(r *reader, e entry) {
	formats, def := f.choice()
	e.def = def
	formats.read(r, e)
}

// sidekiqVariant is the variant of sinks for Sidekiq.
const sidekiqVariant = "redis sidekiq"

// jobRetry is the retry of Sidekiq's jobs, which YAML has as a boolean, a number or text.
type jobRetry struct{ into *string }

func (j jobRetry) expects() string { return `true, false, "class" or an integer from 0 to 10000` }

func (j jobRetry) read(r *reader, e entry) {
	_, kind, _ := scalarOf(e.node)
	scalar{what: j.expects(), kind: kind, set: func(in input) error {
		if n, err := strconv.Atoi(in.text); err == nil && decimal(in.text) && n <= 10_000 {
			*j.into = strconv.Itoa(n)
			return nil
		}
		if !slices.Contains([]string{"true", "false", "class"}, in.text) {
			return invalid("")
		}
		*j.into = in.text
		return nil
	}}.read(r, e)
}

// target is equal for two sinks that write to the same place, regardless of the user; "" if it is unknown.
func (s *Sink) target() string {
	if s.URL.Reveal() == "" || s.Driver == "file" {
		return s.URL.Reveal()
	}
	if d := s.registeredDriver(); d != nil {
		return s.registeredTarget(d)
	}
	_, a, err := parseURL(literal(s.URL.Reveal()), sinkSchemes)
	if err != nil { // already reported
		return ""
	}
	slices.Sort(a.hosts)
	where := s.Driver + "://" + strings.Join(a.hosts, ",")
	switch s.Driver {
	case "redis":
		path := strings.TrimSuffix("/"+strings.Trim(a.path, "/"), "/0") // the default
		return where + strings.TrimSuffix(path, "/") + " " + s.Redis.Mode + " " + cmp.Or(s.Redis.Stream, s.Redis.List, s.Redis.Channel, s.Redis.Queue)
	case "nats":
		return where + " " + s.NATS.Subject
	case "postgres":
		return where + a.path + " " + a.query.Get("table")
	}
	return where + "/" + strings.TrimPrefix(a.tail, "/")
}
