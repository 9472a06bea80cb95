package config

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/robfig/cron/v3"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// mapping is a nested section.
type mapping struct{ section }

func (m mapping) expects() string {
	return "a mapping of " + strings.Join(keyNames(m.keys(), variantOf(m.section)), ", ")
}
func (m mapping) read(r *reader, e entry) { r.section(m.section, e) }

// optional is a section that is read only if it is present.
type optional struct{ mapping }

func (o optional) read(r *reader, e entry) {
	if e.node != nil {
		o.mapping.read(r, e)
	}
}

// pipelines is a list of pipelines.
type pipelines struct{ into *[]Pipeline }

func (p pipelines) expects() string { return "a list of at least one pipeline" }

func (p pipelines) read(r *reader, e entry) {
	sequence, ok := e.node.(*ast.SequenceNode)
	if !ok {
		r.wrongType(e, p.expects(), "")
		return
	}
	if len(sequence.Values) == 0 {
		r.errorf(r.place(e.node), "%s is empty; expected %s", e.path, p.expects())
		return
	}
	*p.into = make([]Pipeline, len(sequence.Values))
	for i, node := range sequence.Values {
		at := r.place(node)
		(*p.into)[i].Place = at
		r.section(&(*p.into)[i], entry{title: "a pipeline", key: at, node: node})
	}
}

// hook is an optional sink.
type hook struct{ into **Sink }

func (h hook) expects() string { return mapping{&Sink{}}.expects() }

func (h hook) read(r *reader, e entry) {
	if e.node == nil {
		return
	}
	*h.into = &Sink{}
	r.section(*h.into, e)
}

// archiveTable is the name of a table and its place.
type archiveTable struct{ *Archive }

func (a archiveTable) expects() string { return table(&a.Table).expects() }

func (a archiveTable) read(r *reader, e entry) {
	if e.node != nil {
		a.Place = r.place(e.node)
	}
	table(&a.Table).read(r, e)
}

// list is a list of scalars.
type list[T comparable] struct {
	what    string
	into    *[]T
	element func(*T) scalar
}

func (l list[T]) expects() string { return l.what }

func (l list[T]) read(r *reader, e entry) {
	if e.node == nil {
		return
	}
	sequence, ok := e.node.(*ast.SequenceNode)
	if !ok {
		r.wrongType(e, l.what, "")
		return
	}
	for _, node := range sequence.Values {
		var value, zero T
		l.element(&value).read(r, entry{path: e.path, key: e.key, node: node})
		if value != zero { // otherwise it was reported
			*l.into = append(*l.into, value)
		}
	}
}

func statuses(into *[]int) list[int] {
	return list[int]{"a list of statuses from 300 to 599", into, func(s *int) scalar { return integer(s, 300, 599) }}
}

func names(into *[]string) list[string] {
	return list[string]{"a list of names", into, func(s *string) scalar { return nonEmpty(s, "a name") }}
}

// nonEmpty is any text but "".
func nonEmpty(into *string, what string) scalar {
	return text(into, what, func(s string) bool { return s != "" })
}

// orAutomatic is a number or "auto". With "auto", the field gets the upper limit.
type orAutomatic struct {
	scalar
	auto *bool
	into *int
	max  int
}

func orAuto(auto *bool, into *int, limit int, number scalar) orAutomatic {
	number.what += ` or "auto"`
	return orAutomatic{scalar: number, auto: auto, into: into, max: limit}
}

func (o orAutomatic) read(r *reader, e entry) {
	if e.node != nil {
		if text, _, ok := scalarOf(e.node); ok && text == "auto" {
			*o.auto, *o.into = true, o.max
			return
		}
	}
	o.scalar.read(r, e)
}

// headers is a mapping of HTTP headers. Every value may be a secret.
type headers struct {
	into *map[string]Secret
	// literal gets what looks like a placeholder in the values and is none.
	literal *[]literalBrace
	odd     *[]oddSecret
}

// literalBrace is a name in braces that is sent as it is written.
type literalBrace struct {
	at         Place
	path, text string
}

// otherBraces matches a name in braces that is not the expansion of a variable. The name is its first group.
var otherBraces = regexp.MustCompile(`(?:^|[^$])(\{[A-Za-z_][A-Za-z0-9_.]*\})`)

func (h headers) expects() string { return "a mapping of header names to text" }

func (h headers) read(r *reader, e entry) {
	if e.node == nil {
		return
	}
	pairs, _ := r.mapping(e, h.expects())
	*h.into = make(map[string]Secret, len(pairs))
	for _, p := range pairs {
		if !headerName.MatchString(p.name) {
			r.errorf(p.key, "header name is %s; expected a name like X-Tenant", quote(p.name))
			continue
		}
		name := http.CanonicalHeaderKey(p.name)
		if _, twice := (*h.into)[name]; twice {
			r.errorf(p.key, "header %s is repeated; expected each header once (names are not case-sensitive)", name)
			continue
		}
		var value Secret
		secret(&value).read(r, entry{path: join(e.path, p.name), key: p.key, node: p.value})
		(*h.into)[name] = value
		noteHeader(h.odd, p.name, textOf(p.value), value.Reveal())
		for _, found := range otherBraces.FindAllStringSubmatch(placeholders.Replace(textOf(p.value)), -1) {
			*h.literal = append(*h.literal, literalBrace{r.place(p.value), join(e.path, p.name), found[1]})
		}
	}
}

// expressions is a mapping of columns to SQL expressions.
type expressions struct{ into *map[string]string }

func (x expressions) expects() string {
	return "a mapping of column names to SQL expressions, like {processed_at: now()}"
}

func (x expressions) read(r *reader, e entry) {
	if e.node == nil {
		return
	}
	pairs, ok := r.mapping(e, x.expects())
	if ok && len(pairs) == 0 {
		r.wrongType(e, x.expects(), "")
		return
	}
	all := make(map[string]string, len(pairs))
	for _, p := range pairs {
		var column, expression string
		if err := columnName(&column).set(input{text: p.name}); err != nil {
			r.errorf(p.key, "column name is %s; expected a column", quote(p.name))
			continue
		}
		multiline(&expression, "an SQL expression").read(r, entry{path: join(e.path, p.name), key: p.key, node: p.value})
		if expression != "" {
			all[column] = expression
		}
	}
	*x.into = all
}

var (
	headerName   = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
	pipelineName = regexp.MustCompile(`^[a-z0-9_-]+$`)
	dnsName      = regexp.MustCompile(`^[0-9A-Za-z_]([0-9A-Za-z_.-]*[0-9A-Za-z_])?$`)
)

func name(into *string) scalar {
	s := text(into, "a name of a-z, 0-9, _ and -", pipelineName.MatchString).showing(showAll)
	s.schema = object{"pattern": pipelineName.String()}
	return s
}

// sqlName matches a table name with an optional schema. Each part is plain or quoted.
var sqlName = regexp.MustCompile(`^(?:[\p{L}\p{N}_$-]+|"(?:[^"]|"")+")(?:\.(?:[\p{L}\p{N}_$-]+|"(?:[^"]|"")+"))?$`)

func table(into *string) scalar {
	return text(into, `a table like outbox_events, app.outbox_events or "my schema"."Odd Table"`, func(s string) bool {
		schema, table, _ := buffer.SplitTable(s)
		return sqlName.MatchString(s) && len(schema) <= 63 && len(table) <= 63
	}).showing(showAll)
}

// schemaName is the name of a schema, with or without quotes.
func schemaName(into *string) scalar {
	what := "a schema name"
	return scalar{what: what, kind: asText, shown: showAll, set: func(in input) error {
		schema, name, _ := buffer.SplitTable(in.text)
		if schema != "" || !sqlName.MatchString(in.text) || len(name) > 63 {
			return invalid("")
		}
		*into = name
		return nil
	}}
}

func path(into *string) scalar { return nonEmpty(into, "a file path") }

func hostName(into *string) scalar {
	return text(into, "a host name", dnsName.MatchString).showing(showAll)
}

func level(into *slog.Level) scalar {
	var word string
	s := choice(&word, "debug", "info", "warn", "error")
	return scalar{what: s.what, kind: s.kind, shown: s.shown, schema: s.schema, set: func(in input) error {
		if err := s.set(in); err != nil {
			return err
		}
		return into.UnmarshalText([]byte(word))
	}}
}

// listen is a TCP address to listen on, or "" for none.
func listen(into *string) scalar {
	return text(into, `host:port like 127.0.0.1:7070, or "" to disable it`, func(s string) bool {
		if s == "" {
			return true
		}
		host, port, err := net.SplitHostPort(s)
		if err != nil {
			return false
		}
		if _, err := netip.ParseAddr(host); err != nil && host != "" && !dnsName.MatchString(host) {
			return false
		}
		_, err = strconv.ParseUint(port, 10, 16)
		return err == nil
	}).showing(showAll)
}

// isLoopback reports whether host is reachable from this machine only.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}

var errFraction = errors.New("has a fraction of a second; expected @every with whole seconds")

var cronParser = cron.NewParser(
	cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

func schedule(into *Schedule) scalar {
	what := `a cron spec of 5 fields, of 6 with seconds, or "@every 1s"`
	return scalar{what: what, kind: asText, shown: showAll, set: func(in input) error {
		if zone := strings.HasPrefix(in.text, "TZ=") || strings.HasPrefix(in.text, "CRON_TZ="); zone && !strings.Contains(in.text, " ") {
			return invalid("time zone without a schedule") // the parser would panic
		}
		parsed, err := cronParser.Parse(in.text)
		if err != nil {
			return invalid(err.Error())
		}
		// The parser would round to whole seconds silently.
		if _, every, ok := strings.Cut(in.text, "@every "); ok {
			if d, err := time.ParseDuration(strings.TrimSpace(every)); err != nil || d < time.Second || d%time.Second != 0 {
				return errFraction
			}
		}
		// Next searches five years ahead, so it finds the 29th of February.
		if parsed.Next(time.Unix(0, 0)).IsZero() {
			return invalid("that date never occurs")
		}
		*into = Schedule{Text: in.text, Schedule: parsed}
		return nil
	}}
}
