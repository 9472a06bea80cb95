package config

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// RoutedSink is one of several sinks of a pipeline.
type RoutedSink struct {
	Sink
	// At is where the sink begins in the file.
	At Place
	// Name is unique in the pipeline.
	Name string
	// Was is the sink's former name; "default" is the sink of a pipeline that had one, "" means none.
	Was string
	// Match are patterns of topics; nil means every topic.
	Match []string
	// BatchSize, Workers and each field of Retry are the pipeline's unless they are set.
	BatchSize     int
	AutoBatchSize bool
	Workers       int
	AutoWorkers   bool
	Retry         Retry
	// Order is the pipeline's unless it is set.
	Order string
	// DeadLetter is the sink's own; without a hook its dead letters go to the pipeline's.
	DeadLetter DeadLetter

	nameAt, wasAt, retryAt, orderAt Place
}

// PerSink returns the pipeline as each of its sinks sees it: with its own sink, name, batch_size, workers, order, retry and dead_letter. A pipeline with
// a single sink is returned itself.
func (p *Pipeline) PerSink() []*Pipeline {
	if p.Sinks == nil {
		return []*Pipeline{p}
	}
	all := make([]*Pipeline, len(p.Sinks))
	for i := range p.Sinks {
		s, one := &p.Sinks[i], *p
		one.Sinks, one.Sink, one.SinkName, one.Match = nil, s.Sink, s.Name, s.Match
		one.BatchSize, one.AutoBatchSize, one.Workers, one.AutoWorkers, one.Retry = s.BatchSize, s.AutoBatchSize, s.Workers, s.AutoWorkers, s.Retry
		one.Order, one.DeadLetter = s.Order, s.DeadLetter
		all[i] = &one
	}
	return all
}

// Takes reports whether the sink, or one of several, takes a topic.
func (p *Pipeline) Takes(topic string) bool {
	return slices.ContainsFunc(p.PerSink(), func(one *Pipeline) bool {
		patterns, err := buffer.ParsePatterns(one.Match) // valid: see patterns
		return err == nil && patterns.Match(topic)
	})
}

// routes are the sinks as the buffer knows them; nil for a single one.
func (p *Pipeline) routes() []buffer.Route {
	var routes []buffer.Route
	for i := range p.Sinks {
		s := &p.Sinks[i]
		routes = append(routes, buffer.Route{
			Sink: s.Name, Was: s.Was, Match: s.Match, BatchSize: s.BatchSize, Ordered: s.Order == "key", Hook: s.DeadLetter.Hook != nil,
		})
	}
	return routes
}

// routedSinks is a list of sinks.
type routedSinks struct{ into *[]RoutedSink }

func (s routedSinks) expects() string { return "a list of at least one sink" }

func (s routedSinks) read(r *reader, e entry) {
	if e.node == nil {
		return
	}
	sequence, ok := e.node.(*ast.SequenceNode)
	if !ok {
		r.wrongType(e, s.expects(), "")
		return
	}
	if len(sequence.Values) == 0 {
		r.errorf(r.place(e.node), "%s is empty; expected %s", e.path, s.expects())
		return
	}
	*s.into = make([]RoutedSink, len(sequence.Values))
	for i, node := range sequence.Values {
		at := r.place(node)
		(*s.into)[i].At = at
		r.section(&(*s.into)[i], entry{path: e.path, title: "a sink", key: at, node: node})
	}
}

// ownKeys are the keys that a sink has as one of several.
func (s *RoutedSink) ownKeys() []key {
	return []key{
		{name: "name", value: name(&s.Name), required: true, help: "The name in metrics, logs and dead letters; unique in the pipeline."},
		{name: "was", value: name(&s.Was), help: "The sink's former name, whose waiting batches and dead letters it takes over; `default` if the pipeline had a single `sink`."},
		{name: "match", value: patterns(&s.Match), help: "The topics that the sink gets: `*` is one token between dots, `#` or `>` at the end one or more. Default: every topic."},
		{
			name: "batch_size", value: orAuto(&s.AutoBatchSize, &s.BatchSize, 10_000, integer(&s.BatchSize, 1, 1_000_000)),
			help: "As the pipeline's, which is the default.",
		},
		{name: "workers", value: orAuto(&s.AutoWorkers, &s.Workers, 32, integer(&s.Workers, 1, 10_000)), help: "As the pipeline's, which is the default."},
		{name: "order", value: choice(&s.Order, "none", "key"), help: "As the pipeline's, which is the default. Only with the relay's own table."},
		{name: "retry", value: optional{mapping{ownRetry{&s.Retry}}}, help: "As the pipeline's, which is the default of each key. A word or a number is Sidekiq's `retry`, as for a single `sink`."},
		{
			name: "dead_letter", value: optional{mapping{ownDeadLetter{&s.DeadLetter}}},
			help: "As the pipeline's, which is notified of the dead letters of sinks without a hook of their own.",
		},
	}
}

// ownDeadLetter is a sink's dead_letter: the pipeline's `keep` is that of all its dead letters.
type ownDeadLetter struct{ *DeadLetter }

func (d ownDeadLetter) keys() []key { return d.ownKeys() }

// ownRetry is a sink's retry, whose keys have the pipeline's values as defaults.
type ownRetry struct{ *Retry }

func (y ownRetry) keys() []key {
	keys := y.Retry.keys()
	for i := range keys {
		keys[i].def = ""
	}
	return keys
}

// or returns y with the fields of other for those that are not set.
func (y Retry) or(other Retry) Retry {
	return Retry{
		MaxAttempts: cmp.Or(y.MaxAttempts, other.MaxAttempts), Initial: cmp.Or(y.Initial, other.Initial),
		Max: cmp.Or(y.Max, other.Max), Multiplier: cmp.Or(y.Multiplier, other.Multiplier),
	}
}

// check checks what concerns one sink alone; see [Pipeline.checkSinks].
func (s *RoutedSink) check(r *reader, e entry, present entries) {
	s.Sink.check(r, e, present)
	s.nameAt, s.wasAt, s.retryAt, s.orderAt = r.at(e, present, "name"), r.at(e, present, "was"), r.at(e, present, "retry"), r.at(e, present, "order")
	if s.Name == "default" {
		r.errorf(s.nameAt, `sinks.name is "default", the name of the sink of a pipeline that has one; expected another`)
	}
}

// checkOrder completes the sink's order by the pipeline's, whose own value was checked before.
func (s *RoutedSink) checkOrder(r *reader, p *Pipeline) {
	switch {
	case s.Order == "":
		s.Order = p.Order
	case s.Order != "key" || p.Order == "key":
	case p.Source.Custom.Is() || p.Source.Preset != "":
		r.errorf(s.orderAt, `sinks.order is "key", which a custom table (source.project, source.preset) does not support; expected "none"`)
	case p.Claim == "range":
		r.errorf(s.orderAt, `sinks.order is "key", which claim: range does not support; expected "none", or claim: auto`)
	}
}

// checkRetry completes the sink's retry by the pipeline's.
func (s *RoutedSink) checkRetry(r *reader, p *Pipeline) {
	own := s.Retry
	s.Retry = own.or(p.Retry)
	if own == (Retry{}) || own.Initial != 0 && own.Max != 0 || s.Retry.Initial <= s.Retry.Max || s.Retry.Max == 0 {
		return // reported before, or valid
	}
	r.errorf(s.retryAt, "sinks.retry.initial is %s with a sinks.retry.max of %s, one of them from the pipeline's retry; expected at most max",
		short(s.Retry.Initial), short(s.Retry.Max))
}

// place is equal for two sinks whose consumers get an event twice if both take it: the target with what else selects the consumer, such as the
// account at an API. It has secrets.
func (s *RoutedSink) place() string {
	target := s.target()
	if target == "" {
		return ""
	}
	user := ""
	if _, a, err := parseURL(literal(s.URL.Reveal()), sinkSchemes); err == nil && s.Driver != "redis" {
		user = a.user
	}
	h := &s.HTTP
	parts := []string{
		target, h.Method, s.Redis.Class, user, s.NATS.Credentials.Reveal(), s.NATS.NKey.Reveal(),
		h.Bearer.Reveal(), h.Basic.User, h.Basic.Password.Reveal(), h.OAuth2.TokenURL.Reveal(), h.OAuth2.ClientID, h.Request, h.Proxy.Reveal(),
	}
	for _, values := range []map[string]Secret{h.Headers, h.Secrets} {
		for _, name := range slices.Sorted(maps.Keys(values)) {
			parts = append(parts, name, values[name].Reveal())
		}
	}
	return strings.Join(parts, "\x00")
}

// keys have retry last, because its meaning depends on url and mode.
func (s *RoutedSink) keys() []key {
	var keys []key
	for _, k := range append(s.ownKeys(), s.Sink.keys()...) {
		if k.name != "retry" {
			keys = append(keys, k)
		}
	}
	return append(keys, key{name: "retry", value: routedRetry{s}})
}

// routedRetry is the relay's retry, a mapping, or that of Sidekiq's jobs, a word or a number.
type routedRetry struct{ *RoutedSink }

func (s routedRetry) relays() optional { return optional{mapping{ownRetry{&s.Retry}}} }

func (s routedRetry) expects() string { return s.relays().expects() }

func (s routedRetry) read(r *reader, e entry) {
	_, _, isScalar := scalarOf(e.node)
	switch {
	case s.variant() != sidekiqVariant:
		s.relays().read(r, e)
	case e.node == nil:
		s.Redis.Retry = "true"
	case isScalar:
		jobRetry{&s.Redis.Retry}.read(r, e)
	default:
		s.Redis.Retry = "true"
		s.relays().read(r, e)
	}
}

// patterns are patterns of topics.
func patterns(into *[]string) someOf[string] {
	return someOf[string]{list[string]{"a list of patterns such as orders.* or orders.#", into, func(s *string) scalar {
		return scalar{what: "a pattern such as orders.* or orders.#", kind: asText, set: func(in input) error {
			_, err := buffer.ParsePatterns([]string{in.text})
			if err == nil {
				*s = in.text
			}
			return err
		}}
	}}, "at least one pattern, or no match for every topic"}
}

// someOf is a list that is not empty.
type someOf[T comparable] struct {
	list[T]
	wants string
}

func (l someOf[T]) read(r *reader, e entry) {
	if sequence, ok := e.node.(*ast.SequenceNode); ok && len(sequence.Values) == 0 {
		r.errorf(r.place(e.node), "%s is empty; expected %s", e.path, l.wants)
		return
	}
	l.list.read(r, e)
}

// shareTopics reports whether a topic matches both lists of patterns.
func shareTopics(a, b []string) bool {
	if len(a) == 0 || len(b) == 0 {
		return true
	}
	return slices.ContainsFunc(a, func(one string) bool {
		return slices.ContainsFunc(b, func(other string) bool { return shareTopic(strings.Split(one, "."), strings.Split(other, ".")) })
	})
}

// shareTopic reports whether a topic matches both patterns, which are valid.
func shareTopic(a, b []string) bool {
	rest := func(token string) bool { return token == "#" || token == ">" }
	for len(a) > 0 && len(b) > 0 {
		switch {
		case rest(a[0]) || rest(b[0]):
			return true
		case a[0] != b[0] && a[0] != "*" && b[0] != "*":
			return false
		}
		a, b = a[1:], b[1:]
	}
	return len(a) == len(b)
}

// checkSinks completes the sinks and checks them against each other.
func (p *Pipeline) checkSinks(r *reader, e entry, present entries) {
	_, single := present["sink"]
	several, given := present["sinks"]
	switch {
	case single && given:
		r.errorf(several.key, "sinks is used together with sink; expected one of them")
		return
	case !single && !given:
		r.errorf(e.key, "sink is missing; expected sink with a url such as redis://host:6379/0, or sinks for several")
		return
	case !given:
		if unmatched, given := present["unmatched"]; given {
			r.errorf(unmatched.key, "unmatched is used with sink, which takes every event; expected sinks, or no unmatched")
		}
		return
	}
	p.checkFormerNames(r)
	names, targets := map[string]Place{}, map[string][]*RoutedSink{}
	for i := range p.Sinks {
		s := &p.Sinks[i]
		if s.BatchSize == 0 {
			s.BatchSize, s.AutoBatchSize = p.BatchSize, p.AutoBatchSize
		}
		if s.Workers == 0 {
			s.Workers, s.AutoWorkers = p.Workers, p.AutoWorkers
		}
		s.checkOrder(r, p)
		s.checkRetry(r, p)
		if first, twice := names[s.Name]; twice && s.Name != "" {
			r.errorf(s.nameAt, "sinks.name is %s, which the sink on line %d already has; expected another", quote(s.Name), first.Line)
		}
		names[s.Name] = s.At
		place, target := s.place(), s.target()
		for _, other := range targets[place] {
			if place != "" && shareTopics(s.Match, other.Match) {
				r.errorf(s.Place, "sinks.url is the target of the sink on line %d, where events would arrive twice; expected another, or patterns in match that share no topic", other.At.Line)
				break
			}
		}
		targets[place] = append(targets[place], s)
		for _, h := range p.hooks() {
			if target != "" && h.sink.target() == target {
				r.errorf(h.sink.Place, "%s.url is the target of a sink, whose consumers would take dead letters for events; expected another target", h.path)
			}
		}
	}
}

// checkFormerNames requires that each former name belongs to one sink, and to none any more.
func (p *Pipeline) checkFormerNames(r *reader) {
	names, former := map[string]Place{}, map[string]Place{}
	for i := range p.Sinks {
		names[p.Sinks[i].Name] = p.Sinks[i].At
	}
	for i := range p.Sinks {
		s := &p.Sinks[i]
		if s.Was == "" {
			continue
		}
		if other, used := names[s.Was]; used {
			r.errorf(s.wasAt, "sinks.was is %s, the name of the sink on line %d; expected a name that no sink has any more", quote(s.Was), other.Line)
		}
		if first, twice := former[s.Was]; twice {
			r.errorf(s.wasAt, "sinks.was is %s, as for the sink on line %d; expected it in one of them", quote(s.Was), first.Line)
		}
		former[s.Was] = s.At
	}
}
