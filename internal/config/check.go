package config

import (
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox"
)

// The rules between keys. A value that is wrong by itself was reported before
// and left at zero, so the rules let zeroes pass.

// at is where a key's value stands, or the section's key without one.
func (r *reader) at(e entry, there written, key string) Place {
	if in, ok := there[key]; ok {
		return r.place(in.node)
	}
	return e.key
}

// once reports the second use of what must be used once.
func (r *reader) once(what, path string, at Place) {
	if first, taken := r.used[what]; taken {
		r.say(at, "%s is taken by the pipeline on line %d already, one of its own was expected", path, first.Line)
		return
	}
	r.used[what] = at
}

func (a *Admin) check(r *reader, e entry, there written) {
	host, _, err := net.SplitHostPort(a.Listen)
	if err != nil || isLoopback(host) || a.Token.Reveal() != "" {
		return
	}
	if token := r.at(e, there, "token"); there["token"].node != nil && r.mistaken(token) {
		return
	}
	r.say(r.at(e, there, "listen"), "admin.listen is beyond loopback without a token, admin.token or 127.0.0.1 was expected")
}

// mistaken tells whether something was found wrong at a place.
func (r *reader) mistaken(at Place) bool {
	return slices.ContainsFunc(r.wrong, func(m Mistake) bool { return m.Place == at })
}

func (p *Pipeline) check(r *reader, e entry, there written) {
	if p.Name != "" {
		r.once("name "+p.Name, "name", r.at(e, there, "name"))
	}
	if h := p.DeadLetter.Hook; h != nil && h.place() != "" && h.place() == p.Sink.place() {
		r.say(h.Place, "dead_letter.hook writes to where sink does, and whoever reads there would take dead letters for events: another place was expected")
	}
	p.checkOwn(r, e, there)
	p.checkArchive(r)
	p.checkWake(r, r.at(e, there, "wake"), r.at(e, there, "eager"))
	if p.Order == "key" && (p.Claim == "optimistic" || p.Claim == "range") {
		r.say(r.at(e, there, "claim"), "claim is %s, and order: key stamps its events: auto or stamp was expected", p.Claim)
	}
}

// checkArchive keeps the archive out of the relay's own tables. Those of other
// pipelines are looked at in the end, when all are known.
func (p *Pipeline) checkArchive(r *reader) {
	a := &p.Archive
	if a.Table == "" {
		return
	}
	if schema, name, _ := outbox.SplitTable(a.Table); p.Source.Driver == "sqlite" {
		if schema != "" {
			r.say(a.Place, "archive.table has a schema, which SQLite has not: a table's name alone was expected")
			return
		}
		a.Table = name
	}
	own := func(name string) string { return p.Source.tableIdentity(p.beside(name)) }
	for _, name := range []string{"outbox_batches", "outbox_dead_letters", "outbox_buffers"} {
		if p.Source.tableIdentity(p.archive()) == own(name) {
			r.say(a.Place, "archive.table is the relay's own table %s, one of its own was expected", name)
		}
	}
}

// archive is the archive's table, which is beside the ledger unless it says where.
func (p *Pipeline) archive() string {
	if schema, _, _ := outbox.SplitTable(p.Archive.Table); schema != "" && p.Source.Driver != "sqlite" {
		return p.Archive.Table
	}
	return p.beside(p.Archive.Table)
}

// beside is a table in the ledger's schema, as far as that is known.
func (p *Pipeline) beside(table string) string {
	if p.Source.Schema != "" {
		return outbox.QuoteName(p.Source.Schema) + "." + table
	}
	return table
}

func (c *Config) check(r *reader, _ entry, _ written) {
	for i := range c.Pipelines {
		a := &c.Pipelines[i]
		if a.Archive.Table == "" || a.Source.URL.Reveal() == "" {
			continue
		}
		for j := range c.Pipelines {
			s := &c.Pipelines[j].Source
			if s.Table != "" && s.URL.Reveal() != "" && s.identity() == a.Source.identityOf(a.archive()) {
				r.say(a.Archive.Place, "archive.table is the source.table on line %d, a table of its own was expected", s.Place.Line)
			}
		}
	}
}

func (s *Source) check(r *reader, e entry, there written) {
	schema, name, _ := outbox.SplitTable(s.Table)
	switch _, given := there["schema"]; {
	case s.Driver == "sqlite" && schema != "":
		r.say(r.at(e, there, "table"), "source.table has a schema, which SQLite has not: a table's name alone was expected")
	case s.Driver == "sqlite":
		s.Table = name
	case schema != "" && !given:
		s.Schema = schema
	}
	s.checkOwn(r, e, there)
	if s.Table == "" || s.URL.Reveal() == "" {
		return
	}
	at := s.Place
	if _, written := there["table"]; written {
		at = r.at(e, there, "table")
	}
	r.once("table "+s.identity(), "source.table", at)
}

func (s *Supervisor) check(r *reader, e entry, there written) {
	if s.TerminateAfter == 0 || s.TerminateAfter > s.WarnAfter || s.WarnAfter == 0 {
		return
	}
	r.say(r.at(e, there, "terminate_after"), "%s.terminate_after is not longer than %s.warn_after, which is %s: a longer time was expected, so that somebody hears of it before", e.path, e.path, short(s.WarnAfter))
}

func (y *Retry) check(r *reader, e entry, there written) {
	if y.Initial <= y.Max || y.Max == 0 {
		return
	}
	at := r.at(e, there, "max")
	if _, written := there["initial"]; written {
		at = r.at(e, there, "initial")
	}
	r.say(at, "retry.initial is longer than retry.max, at most that was expected")
}

func (s *Sink) check(r *reader, e entry, there written) {
	if s.NATS.Credentials.Reveal() != "" && s.NATS.NKey.Reveal() != "" {
		r.say(there["nkey"].key, "%s.nkey stands beside %s.credentials, one of them was expected", e.path, e.path)
	}
	if tls, ok := there["tls"]; ok && strings.HasPrefix(s.URL.Reveal(), "http://") {
		r.say(tls.key, "%s.tls belongs to https://, and %s.url is http://: https:// or no %s.tls was expected", e.path, e.path, e.path)
	}
	s.checkAuthorization(r, e, there)
	if _, given := there["request"]; s.HTTP.Format == "form" && !given {
		r.say(r.at(e, there, "format"), "%s.format is form, and form fields are what %s.request makes: that was expected beside it", e.path, e.path)
	} else if s.HTTP.Format == "cloudevents" && given {
		r.say(there["request"].key, "%s.request stands beside %s.format: cloudevents, one of them was expected", e.path, e.path)
	}
	for _, status := range s.HTTP.Unavailable {
		if slices.Contains(s.HTTP.Refused, status) {
			r.say(r.at(e, there, "unavailable"), "%s.unavailable has %d, which %s.refused has too: one of them was expected", e.path, status, e.path)
		}
	}
}

// checkAuthorization wants one way to fill the header Authorization.
func (s *Sink) checkAuthorization(r *reader, e entry, there written) {
	var first string
	if u, err := url.Parse(placeholders.Replace(s.URL.Reveal())); s.Driver == "http" && err == nil && u.User != nil {
		first = "the user in " + e.path + ".url"
	}
	if _, given := s.HTTP.Headers["Authorization"]; given && first == "" { // over the URL's it may stand
		first = e.path + ".headers.Authorization"
	}
	for _, name := range []string{"bearer", "basic", "oauth2"} {
		in, given := there[name]
		switch {
		case !given:
		case first != "":
			r.say(in.key, "%s.%s stands beside %s, and both fill Authorization: one of them was expected", e.path, name, first)
		default:
			first = e.path + "." + name
		}
	}
}

func (t *TLS) check(r *reader, e entry, there written) {
	if (t.Cert == "") == (t.Key == "") {
		return
	}
	for _, pair := range [][2]string{{"cert", "key"}, {"key", "cert"}} {
		_, one := there[pair[0]]
		if _, other := there[pair[1]]; one && !other {
			r.say(there[pair[0]].key, "%s.%s stands alone, %s.%s was expected beside it", e.path, pair[0], e.path, pair[1])
		}
	}
}
