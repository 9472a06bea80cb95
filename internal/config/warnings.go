package config

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/internal/jq"
	"github.com/outboxrelay/relay/internal/redact"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// Warning is a part of a valid configuration that is probably not what its author wants.
type Warning struct {
	Place    Place
	Pipeline string
	// Text says what is wrong, Fix what to do. Both are without secrets.
	Text, Fix string
}

func (w Warning) String() string { return w.Place.String() + ": " + w.Text + "; " + w.Fix }

// Warnings are sorted by place.
func (c *Config) Warnings() (all []Warning) {
	for i := range c.Pipelines {
		p := &c.Pipelines[i]
		add := func(at Place, text, fix string) { all = append(all, Warning{at, p.Name, text, fix}) }
		if p.Source.isInClearText() {
			add(p.Source.Place, "source.url has no sslmode that requires TLS, so the password and all events may cross the network in clear text",
				"add ?sslmode=verify-full, or require without a check of the server's certificate")
		}
		for _, one := range p.PerSink() {
			path := cmp.Or(one.SinkName, "sink")
			one.Sink.warn(path, add)
			if text, fix := one.UnsentOfBatch(); text != "" {
				add(one.Sink.Place, path+".request "+text, fix)
			}
			if p.Source.Custom.Is() && projectsHeaders.MatchString(p.Source.Custom.Project) && one.Sink.IgnoresHeaders() {
				add(one.Sink.Place, path+".request sends nothing of the headers, which source.project makes; a delivered row is deleted", AddHeaders)
			}
		}
		for _, h := range p.hooks() {
			h.sink.warn(h.name, add)
		}
	}
	slices.SortStableFunc(all, func(a, b Warning) int { return a.Place.compare(b.Place) })
	return all
}

var projectsHeaders = regexp.MustCompile(`(?i)\bheaders\b`)

// AddHeaders is what to do about a request program that ignores the headers of events.
const AddHeaders = "add .headers to the program, or a comment: # not sent: headers"

// headersComment matches a comment of a program that says that headers are left out on purpose.
var headersComment = regexp.MustCompile(`#.*\bheaders\b`)

// IgnoresHeaders reports whether a program makes the requests that surely sends nothing of the headers of events, and no comment in it says so.
func (s *Sink) IgnoresHeaders() bool {
	return s.Driver == "http" && s.HTTP.Request != "" && jq.Ignores(s.HTTP.Request, "headers") && !headersComment.MatchString(s.HTTP.Request)
}

// UnknownMember is a member that a program reads and that its input never has. Program is request or results; Text names the member, Fix those that exist.
type UnknownMember struct{ Program, Text, Fix string }

// UnknownMembers returns what the programs of an http sink read although it is always null, such as a misspelt member of an event.
func (s *Sink) UnknownMembers() (all []UnknownMember) {
	if s.Driver != "http" {
		return nil
	}
	add := func(program string, found []jq.UnknownMember) {
		for _, m := range found {
			text := "." + clip(m.Name) + " of " + m.Of + ", which has no such member: it is null"
			if near := nearest(m.Name, m.Known()); near != "" {
				text += " (did you mean ." + near + "?)"
			}
			all = append(all, UnknownMember{program, text, "expected " + strings.Join(m.Known(), ", ")})
		}
	}
	add("request", jq.UnknownInRequest(s.HTTP.Request))
	add("results", jq.UnknownInResults(s.HTTP.Results))
	return all
}

// UnsentOfBatch says that the program of an http sink sends fewer events than a batch may have, although all of them count as delivered, and
// what to do; "" if that is not sure, or if a comment says that it is on purpose. A dead-letter hook may name one of several on purpose.
func (p *Pipeline) UnsentOfBatch() (text, fix string) {
	if p.Sink.Driver != "http" {
		return "", ""
	}
	program := p.Sink.HTTP.Request
	if part := jq.Cuts(program); part != "" && !eventsComment.MatchString(program) {
		return "leaves out events of a batch by " + shownPart(program, part, "their position") + ", and they count as delivered, too", "send all events, as [.events[] | ...] does; or add a comment: # not sent: events"
	}
	if part := jq.Filters(program); part != "" && !eventsComment.MatchString(program) {
		return "sends only the events that pass " + shownPart(program, part, "a condition") + ", and the others count as delivered, too",
			`name those that are meant by match of a sink, or by source.where; or let the program fail for the others, as // error("no email") does: they become dead letters; or add a comment: # not sent: events`
	}
	n, ok := jq.Picks(program)
	switch {
	case !ok || !p.AutoBatchSize && p.BatchSize <= n:
		return "", ""
	case p.AutoBatchSize:
		text = "with batch_size: auto"
	default:
		text = fmt.Sprintf("of up to %d (batch_size)", p.BatchSize)
	}
	events := "one event"
	if n > 1 {
		events = fmt.Sprintf("at most %d events", n)
	}
	return "sends " + events + " of a batch " + text + ", and all of them count as delivered",
		fmt.Sprintf("set batch_size: %d, or send all events, as [.events[] | ...] does", n)
}

// shownPart is a part of a program for a warning, or other words for it. A secret is only masked if it stands there as it is.
func shownPart(program, part, other string) string {
	if len(part) > 60 || strings.Contains(part, `"`) && !strings.Contains(program, part) {
		return other
	}
	return part
}

// leavesOut reports whether the request program of a sink leaves out events on purpose, as a dead-letter hook may, or a warning says so already.
func (p *Pipeline) leavesOut(s *Sink) bool {
	warned, _ := p.UnsentOfBatch()
	return s != &p.Sink || warned != "" || eventsComment.MatchString(s.HTTP.Request)
}

// eventsComment matches a comment of a program that says that events are left out on purpose.
var eventsComment = regexp.MustCompile(`(?i)#.*\bnot sent\b.*\bevents\b`)

// looksLikeField matches a hash tag that is probably meant as a placeholder for a field of an event or a column of its row.
var looksLikeField = regexp.MustCompile(`(?i)\{(id|type|tenant|payload|headers|\w+_(id|type|name|key|uuid|at))\}`)

// isInClearText reports whether connections to a server on another machine may be without TLS.
func (s *Source) isInClearText() bool {
	if s.Driver != "postgres" {
		return false
	}
	_, a, err := parseURL(literal(s.URL.Reveal()), sourceSchemes)
	if err != nil || strings.HasPrefix(a.query.Get("host"), "/") { // a Unix socket
		return false
	}
	if !slices.ContainsFunc(append(a.hosts, net.JoinHostPort(a.query.Get("host"), "")), isRemote) {
		return false
	}
	mode := cmp.Or(a.query.Get("sslmode"), os.Getenv("PGSSLMODE")) // as the driver does
	return !slices.Contains([]string{"require", "verify-ca", "verify-full"}, mode)
}

// isRemote reports whether host:port is on another machine. A name without a dot is not: it is a container or a
// service of the same private network.
func isRemote(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && isRemoteHost(host)
}

func isRemoteHost(host string) bool { return strings.ContainsAny(host, ".:") && !isLoopback(host) }

// warn finds what is probably wrong with a sink.
func (s *Sink) warn(path string, add func(at Place, text, fix string)) {
	for key, name := range map[string]string{"stream": s.Redis.Stream, "list": s.Redis.List} {
		if tag := looksLikeField.FindString(name); tag != "" {
			add(s.Place, path+"."+key+" has "+tag+", which is no placeholder but a hash tag: it stands in the name as it is written",
				"expected {topic} or {key}; for a hash tag another name, such as {events}")
		}
	}
	for _, b := range s.HTTP.literal {
		add(b.at, b.path+" has "+b.text+", which is no placeholder: it is sent as it is written",
			"expected {topic} or {key}; send other values in the body, with source.project or request")
	}
	if s.Driver != "http" {
		return
	}
	for _, o := range s.HTTP.odd {
		add(s.Place, path+"."+o.key+" "+o.text, o.fix)
	}
	for _, one := range s.UnknownMembers() {
		add(s.Place, path+"."+one.Program+" reads "+one.Text, one.Fix)
	}
	text := s.URL.Reveal()
	scheme, user, host, rest := redact.SplitURL(text)
	if scheme == "http" && isRemoteURL(host) && (user != "" || s.HTTP.sendsSecrets() || len(s.URL.pathSecrets()) > 0) {
		add(s.Place, path+".url is http://, so credentials cross the network to another machine in clear text", "use https://")
	}
	if token := s.HTTP.OAuth2.TokenURL.Reveal(); strings.HasPrefix(token, "http://") {
		if _, _, host, _ := redact.SplitURL(token); isRemoteURL(host) {
			add(s.Place, path+".oauth2.token_url is http://, so the client secret crosses the network to another machine in clear text", "use https://")
		}
	}
	if segments, _, _ := strings.Cut(rest, "?"); strings.HasSuffix(strings.TrimSuffix(segments, "/"), "/_bulk") && s.HTTP.Results == "" {
		add(s.Place, path+".url is a _bulk API, which answers 200 even if it refused events, and without "+path+".results all of them count as delivered",
			"add "+path+".results, as docs/recipes/elasticsearch.md does")
	}
}

func isRemoteURL(host string) bool {
	u, err := url.Parse("http://" + host)
	return err == nil && isRemoteHost(u.Hostname())
}

// sendsSecrets reports whether requests carry a secret beside the URL.
func (h *HTTPSink) sendsSecrets() bool {
	for name := range h.Headers {
		if httpsink.MayBeSecret(name) {
			return true
		}
	}
	return h.Bearer.Reveal() != "" || h.Basic.Password.Reveal() != "" || h.OAuth2.ClientSecret.Reveal() != "" || len(h.Secrets) > 0
}
