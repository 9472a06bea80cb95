package config

import (
	"net/url"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// The rules that involve several keys. An invalid value was reported before and left
// at zero, so the rules ignore zero values.

// at is the place of a key's value, or of its section if the key is absent.
func (r *reader) at(e entry, present entries, key string) Place {
	if in, ok := present[key]; ok {
		return r.place(in.node)
	}
	return e.key
}

// exclusive reports two keys of a section that must not be used together.
func (r *reader) exclusive(e entry, present entries, key, other string) {
	r.errorf(present[key].key, "%s.%s is used together with %s.%s; expected one of them", e.path, key, e.path, other)
}

// requireUnique reports the second use of a value that must be unique.
func (r *reader) requireUnique(path, value, identity string, at Place) {
	if first, used := r.used[path+" "+identity]; used {
		r.errorf(at, "%s is %s, which the pipeline on line %d already uses; expected another", path, quote(value), first.Line)
		return
	}
	r.used[path+" "+identity] = at
}

// hasErrorAt reports whether an error was found at a place.
func (r *reader) hasErrorAt(at Place) bool {
	return slices.ContainsFunc(r.errs, func(err Error) bool { return err.Place == at })
}

func (p *Pipeline) check(r *reader, e entry, present entries) {
	if p.Name != "" {
		r.requireUnique("name", p.Name, p.Name, r.at(e, present, "name"))
	}
	if h := p.DeadLetter.Hook; h != nil && h.target() != "" && h.target() == p.Sink.target() {
		r.errorf(h.Place, "dead_letter.hook.url is the target of the sink, whose consumers would take dead letters for events; expected another target")
	}
	p.checkSinks(r, e, present)
	p.checkBinary(r)
	p.checkCustomTable(r, e, present)
	p.checkArchive(r)
	p.checkWake(r, r.at(e, present, "wake"), r.at(e, present, "eager"))
	if p.Order == "key" && p.Claim == "range" {
		r.errorf(r.at(e, present, "claim"), `claim is "range", which order: key does not support; expected "auto" or "stamp"`)
	}
}

// checkBinary requires batches of one event where a request carries one. A hook gets them by itself.
func (p *Pipeline) checkBinary(r *reader) {
	for _, one := range p.PerSink() {
		if s := &one.Sink; s.HTTP.Format == binary && (one.BatchSize > 1 || one.AutoBatchSize) {
			r.errorf(s.formatAt, "%s.format is %q, which sends one event a request, and the batch_size is not 1; expected batch_size: 1", p.sinkPath(), binary)
		}
	}
}

// binary is the format of one CloudEvent a request.
const binary = httpsink.CloudEventsBinary

// sinkPath is what messages call a sink of the pipeline.
func (p *Pipeline) sinkPath() string {
	if p.Sinks != nil {
		return "sinks"
	}
	return "sink"
}

// checkArchive rejects the relay's own tables as archive. [Config.check] compares the
// tables of all pipelines.
func (p *Pipeline) checkArchive(r *reader) {
	a := &p.Archive
	if a.Table == "" {
		return
	}
	if schema, name, _ := buffer.SplitTable(a.Table); p.Source.Driver == "sqlite" {
		if schema != "" {
			r.errorf(a.Place, "archive.table is %s, and SQLite has no schemas; expected a table name without a schema", quote(a.Table))
			return
		}
		if a.Partition != "" {
			r.errorf(a.Place, "archive.partition is used with SQLite, which has no partitions; expected archive.keep alone")
		}
		a.Table = name
	}
	for _, name := range []string{"outbox_batches", "outbox_dead_letters", "outbox_buffers", "outbox_sinks"} {
		if p.Source.tableIdentity(p.archiveName()) == p.Source.tableIdentity(p.inLedgerSchema(name)) {
			r.errorf(a.Place, "archive.table is %s, one of the relay's own tables; expected another table", name)
		}
	}
}

func (a *Archive) check(r *reader, _ entry, present entries) {
	if keep, given := present["keep"]; given && a.Table == "" {
		r.errorf(keep.key, "archive.keep is used without archive.table; expected both")
	}
	if partition, given := present["partition"]; given && a.Partition != "" && a.Keep == 0 {
		r.errorf(partition.key, "archive.partition is used without archive.keep, after which partitions are dropped; expected both")
	}
	enabled, given := present["enabled"]
	switch {
	case a.Off:
		*a = Archive{Place: a.Place, Off: true}
	case given && a.Table == "":
		r.errorf(enabled.key, "archive.enabled is used without archive.table; expected both, or false")
	}
}

// archiveName is the archive with its schema, by default the ledger's.
func (p *Pipeline) archiveName() string {
	if schema, _, _ := buffer.SplitTable(p.Archive.Table); schema != "" && p.Source.Driver != "sqlite" {
		return p.Archive.Table
	}
	return p.inLedgerSchema(p.Archive.Table)
}

// inLedgerSchema adds the ledger's schema to a table name, if the schema is known.
func (p *Pipeline) inLedgerSchema(table string) string {
	if p.Source.Schema != "" {
		return buffer.QuoteName(p.Source.Schema) + "." + table
	}
	return table
}

func (c *Config) check(r *reader, _ entry, _ entries) {
	for i := range c.Pipelines {
		a := &c.Pipelines[i]
		if a.Archive.Table == "" || a.Source.URL.Reveal() == "" {
			continue
		}
		for j := range c.Pipelines {
			s := &c.Pipelines[j].Source
			if s.Table != "" && s.URL.Reveal() != "" && s.identity() == a.Source.identityOf(a.archiveName()) {
				r.errorf(a.Archive.Place, "archive.table is %s, the source.table on line %d; expected another table", quote(a.Archive.Table), s.Place.Line)
			}
		}
	}
}

func (s *Source) check(r *reader, e entry, present entries) {
	schema, name, _ := buffer.SplitTable(s.Table)
	switch _, given := present["schema"]; {
	case s.Driver == "sqlite" && schema != "":
		r.errorf(r.at(e, present, "table"), "source.table is %s, and SQLite has no schemas; expected a table name without a schema", quote(s.Table))
	case s.Driver == "sqlite":
		s.Table = name
	case schema != "" && !given:
		s.Schema = schema
	}
	s.checkCustomTable(r, e, present)
	if s.Table == "" || s.URL.Reveal() == "" {
		return
	}
	at := s.Place
	if _, written := present["table"]; written {
		at = r.at(e, present, "table")
	}
	r.requireUnique("source.table", s.Table, s.identity(), at)
}

func (s *Supervisor) check(r *reader, e entry, present entries) {
	if s.TerminateAfter == 0 || s.TerminateAfter > s.WarnAfter || s.WarnAfter == 0 {
		return
	}
	r.errorf(r.at(e, present, "terminate_after"), "%s.terminate_after is %s; expected more than %s.warn_after (%s), so that a warning comes first",
		e.path, short(s.TerminateAfter), e.path, short(s.WarnAfter))
}

func (y *Retry) check(r *reader, e entry, present entries) {
	if y.Initial <= y.Max || y.Max == 0 {
		return
	}
	at := r.at(e, present, "max")
	if _, written := present["initial"]; written {
		at = r.at(e, present, "initial")
	}
	r.errorf(at, "retry.initial is %s; expected at most retry.max (%s)", short(y.Initial), short(y.Max))
}

func (s *Sink) check(r *reader, e entry, present entries) {
	if s.NATS.Credentials.Reveal() != "" && s.NATS.NKey.Reveal() != "" {
		r.exclusive(e, present, "nkey", "credentials")
	}
	s.checkTLS(r, e, present)
	if password, given := present["sentinel_password"]; given && s.Driver == "redis" && s.URL.Reveal() != "" && !strings.Contains(s.URL.Reveal(), "+sentinel://") {
		r.errorf(password.key, "%s.sentinel_password is used without sentinels; expected redis+sentinel:// in %s.url", e.path, e.path)
	}
	s.checkAuthorization(r, e, present)
	if _, given := present["request"]; s.HTTP.Format == "form" && !given {
		r.errorf(r.at(e, present, "format"), `%s.format is "form", and %s.request is missing; expected %s.request, which makes the fields`, e.path, e.path, e.path)
	} else if strings.HasPrefix(s.HTTP.Format, "cloudevents") && given {
		r.errorf(present["request"].key, "%s.request is used together with %s.format %q; expected one of them", e.path, e.path, s.HTTP.Format)
	}
	s.formatAt = r.at(e, present, "format")
	if _, given := present["sign"]; given && s.HTTP.Format == "ndjson" {
		r.errorf(present["sign"].key, `%s.sign is used together with %s.format "ndjson", which no Standard Webhooks library reads: they parse the signed body as one JSON text; expected another format`, e.path, e.path)
	}
	for _, status := range s.HTTP.Unavailable {
		if slices.Contains(s.HTTP.Refused, status) {
			r.errorf(r.at(e, present, "unavailable"), "%s.unavailable has %d, and so does %s.refused; expected it in one of them", e.path, status, e.path)
		}
	}
}

// withTLS maps the schemes without TLS to those with it.
var withTLS = []struct{ plain, secure string }{
	{"http://", "https://"},
	{"nats://", "tls+nats://"},
}

// checkTLS rejects TLS settings that would have no effect.
func (s *Sink) checkTLS(r *reader, e entry, present entries) {
	tls, given := present["tls"]
	for _, scheme := range withTLS {
		if given && strings.HasPrefix(s.URL.Reveal(), scheme.plain) {
			r.errorf(tls.key, "%s.tls is used with the scheme %s; expected %s in %s.url, or no %s.tls",
				e.path, scheme.plain, scheme.secure, e.path, e.path)
		}
	}
	if given && s.TLS == (TLS{}) && s.Driver == "redis" && !strings.HasPrefix(s.URL.Reveal(), "rediss") {
		r.errorf(tls.key, "%s.tls is empty; expected ca, cert and key, server_name or insecure_skip_verify, or rediss in %s.url", e.path, e.path)
	}
}

// checkAuthorization allows one source for the header Authorization.
func (s *Sink) checkAuthorization(r *reader, e entry, present entries) {
	if s.registeredDriver() != nil {
		return
	}
	var first string
	if u, err := url.Parse(placeholders.Replace(s.URL.Reveal())); s.Driver == "http" && err == nil && u.User != nil {
		first = "the user in " + e.path + ".url"
	}
	if _, given := s.HTTP.Headers["Authorization"]; given && first == "" { // a header may override the URL's user
		first = e.path + ".headers.Authorization"
	}
	for _, name := range []string{"bearer", "basic", "oauth2"} {
		in, given := present[name]
		switch {
		case !given:
		case first != "":
			r.errorf(in.key, "%s.%s is used together with %s, and both set Authorization; expected one of them", e.path, name, first)
		default:
			first = e.path + "." + name
		}
	}
}

func (t *TLS) check(r *reader, e entry, present entries) {
	for _, pair := range [][2]string{{"cert", "key"}, {"key", "cert"}} {
		_, one := present[pair[0]]
		if _, other := present[pair[1]]; one && !other {
			r.errorf(present[pair[0]].key, "%s.%s is used without %s.%s; expected both", e.path, pair[0], e.path, pair[1])
		}
	}
}
