package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	// deadTimeout bounds what a page about dead letters asks of the databases.
	deadTimeout = 20 * time.Second
	// deadPage is how many dead letters a list shows, deadGrouped how many of the newest are grouped by error or topic.
	deadPage, deadGrouped = 100, 1000
	// deadGroups is how many errors, topics, hours or days are shown at most.
	deadGroups = 20
)

func deadLink(pipeline, sink string) string {
	q := url.Values{"pipeline": {pipeline}}
	if sink != "" {
		q.Set("sink", sink)
	}
	return "dead?" + q.Encode()
}

// deadFilter is what a page about dead letters selects; its fields are those of the form.
type deadFilter struct {
	Pipeline, Sink, Topic, Error, ID string
	Newer, Older                     string // durations, or times
	Closed                           bool
}

// filterOf reads the filter of a query or a form.
func filterOf(v url.Values) deadFilter {
	get := func(name string) string { return strings.TrimSpace(v.Get(name)) }
	return deadFilter{
		Pipeline: get("pipeline"), Sink: get("sink"), Topic: get("topic"), Error: get("error"), ID: get("id"),
		Newer: get("newer_than"), Older: get("older_than"), Closed: v.Get("closed") != "",
	}
}

// Query is the filter as the query of a link.
func (f deadFilter) Query() string {
	q := url.Values{}
	for _, one := range f.Fields() {
		q.Set(one.Name, one.Value)
	}
	return q.Encode()
}

// String is the filter for people.
func (f deadFilter) String() string {
	var all []string
	for _, one := range f.Fields() {
		if one.Name != "pipeline" {
			all = append(all, one.Name+"="+one.Value)
		}
	}
	if all == nil {
		return "all"
	}
	return strings.Join(all, " ")
}

// Words are the conditions for people; the pipeline first.
func (f deadFilter) Words() (all []string) {
	all = append(all, "of all pipelines")
	if f.Pipeline != "" {
		all[0] = "of pipeline " + f.Pipeline
	}
	for _, one := range []struct{ before, is, after string }{
		{"of sink ", f.Sink, ""}, {"of topic ", f.Topic, ""}, {"with an error that contains \"", f.Error, "\""}, {"of event ", strings.ReplaceAll(f.ID, ",", ", "), ""},
	} {
		if one.is != "" {
			all = append(all, one.before+visible([]byte(one.is))+one.after)
		}
	}
	died := func(value, ago, at string) {
		switch _, err := time.ParseDuration(value); {
		case value == "":
		case err == nil:
			all = append(all, fmt.Sprintf(ago, value))
		default:
			all = append(all, at+" "+value)
		}
	}
	died(f.Newer, "that died within the last %s", "that died at or after")
	died(f.Older, "that died more than %s ago", "that died before")
	return all
}

// Link is the list of what the filter selects, from a page beside it.
func (f deadFilter) Link() template.URL { return template.URL("dead?" + f.Query()) } //nolint:gosec // encoded

// field is a field of a form.
type field struct{ Name, Value string }

// Fields are the fields that are set.
func (f deadFilter) Fields() (set []field) {
	closed := ""
	if f.Closed {
		closed = "1"
	}
	for _, one := range []field{
		{"pipeline", f.Pipeline},
		{"sink", f.Sink},
		{"topic", f.Topic},
		{"error", f.Error},
		{"id", f.ID},
		{"newer_than", f.Newer},
		{"older_than", f.Older},
		{"closed", closed},
	} {
		if one.Value != "" {
			set = append(set, one)
		}
	}
	return set
}

// WithError and WithTopic are the filter with one more condition.
func (f deadFilter) WithError(pipeline, sink, text string) deadFilter {
	f.Pipeline, f.Error = pipeline, text
	if sink != "" {
		f.Sink = sink
	}
	return f
}

// WithTopic is the filter for one topic.
func (f deadFilter) WithTopic(pipeline, topic string) deadFilter {
	f.Pipeline, f.Topic = pipeline, topic
	return f
}

// Within is the filter for a pipeline's dead letters of one hour or day.
func (f deadFilter) Within(g *admin.TimeGroup) deadFilter {
	f.Pipeline, f.Newer, f.Older = g.Pipeline, g.Begin.Format(time.RFC3339), g.End.Format(time.RFC3339)
	return f
}

// parse returns what the buffers are asked for.
func (f deadFilter) parse() (q buffer.DeadFilter, err error) {
	q = buffer.DeadFilter{Sink: f.Sink, Topic: f.Topic, Error: f.Error, Closed: f.Closed}
	if err := admin.SetDied(&q, f.Older, f.Newer); err != nil {
		return q, err
	}
	if f.ID != "" {
		if q.IDs, q.UUIDs, err = admin.ParseIDs(strings.FieldsFunc(f.ID, func(r rune) bool { return r == ',' || r == ' ' })); err != nil {
			return q, err
		}
	}
	return q, nil
}

// selected are the pipelines that the filter names.
func (s *Console) selected(name string) (all []admin.Pipeline, err error) {
	for _, p := range s.config.Source.Pipelines() {
		if name == "" || p.Name == name {
			all = append(all, p)
		}
	}
	if all == nil {
		return nil, fmt.Errorf("pipeline %q does not exist in this relay", name)
	}
	return all, nil
}

// selection is what a filter asks which pipelines for; ok is false if it was answered with an error.
func (s *Console) selection(w http.ResponseWriter, r *http.Request, f deadFilter) (q buffer.DeadFilter, selected []admin.Pipeline, ok bool) {
	q, err := f.parse()
	if err != nil {
		s.fail(w, r, http.StatusBadRequest, err)
		return q, nil, false
	}
	if selected, err = s.selected(f.Pipeline); err != nil {
		s.fail(w, r, http.StatusNotFound, err)
		return q, nil, false
	}
	return q, selected, true
}

// deadRow is a dead letter in a list.
type deadRow struct {
	admin.DeadLetter
	ID, Link, Error string
	At              time.Time
	Open            bool
	Closed          string
}

// topicGroup are dead letters of one topic.
type topicGroup struct {
	Pipeline, Topic string
	Count           int64
}

// deadData is a list of dead letters.
type deadData struct {
	Filter  deadFilter
	Names   []string // of all pipelines
	Total   int64    // open ones that match
	Listed  int64    // all that the list is of, with the closed ones if the filter has them
	Rows    []deadRow
	Groups  []*admin.ErrorGroup
	Topics  []topicGroup
	Grouped int64 // how many of the newest the groups by error and topic are of
	Times   []*admin.TimeGroup
	Days    bool // Times are days, not hours
	Earlier bool // others died before them
	Sinks   bool
	Errors  []string // databases that cannot be read
	Done    flash    // what was done just now
}

// deadList serves the list.
func (s *Console) deadList(w http.ResponseWriter, r *http.Request) {
	d := deadData{Filter: filterOf(r.URL.Query()), Done: s.flashes.take(r)}
	q, selected, ok := s.selection(w, r, d.Filter)
	if !ok {
		return
	}
	for _, p := range s.config.Source.Pipelines() {
		d.Names = append(d.Names, p.Name)
		d.Sinks = d.Sinks || p.Sinks != nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), deadTimeout)
	defer cancel()
	var (
		newest []buffer.DeadEvent
		times  []admin.TimeSource
	)
	for _, p := range selected {
		n, err := p.Store.CountDead(ctx, q)
		if err == nil && n.Open+n.Closed > 0 {
			var events []buffer.DeadEvent
			events, err = p.Store.ListNewestDead(ctx, q, deadGrouped)
			newest = append(newest, events...)
			times = append(times, admin.TimeSource{Pipeline: p.Name, Store: p.Store, Filter: q})
		}
		if err != nil {
			d.Errors = append(d.Errors, s.config.Redact(p.Name+": "+err.Error()))
			continue
		}
		d.Total += n.Open
		d.Listed += n.Open
		if q.Closed {
			d.Listed += n.Closed
		}
	}
	slices.SortStableFunc(newest, func(a, b buffer.DeadEvent) int { return b.DiedAt.Compare(a.DiedAt) })
	newest = newest[:min(len(newest), deadGrouped)]
	d.Grouped = int64(len(newest))
	var groups admin.ErrorGroups
	topics := map[topicGroup]int64{}
	for i := range newest {
		e := &newest[i]
		groups.Add(e)
		topics[topicGroup{Pipeline: e.Pipeline, Topic: e.Topic}]++
		if i < deadPage {
			d.Rows = append(d.Rows, s.deadRow(e))
		}
	}
	for t, n := range topics {
		t.Count = n
		d.Topics = append(d.Topics, t)
	}
	slices.SortFunc(d.Topics, func(a, b topicGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Pipeline+"\x00"+a.Topic, b.Pipeline+"\x00"+b.Topic))
	})
	d.addTimes(ctx, times, func(pipeline string, err error) {
		d.Errors = append(d.Errors, s.config.Redact(pipeline+": "+err.Error()))
	})
	d.Groups = groups.Sorted()
	d.Groups, d.Topics = d.Groups[:min(len(d.Groups), deadGroups)], d.Topics[:min(len(d.Topics), deadGroups)]
	for _, g := range d.Groups {
		g.Error = s.config.Redact(g.Error)
	}
	s.render(w, r, http.StatusOK, "dead", "dead", "Dead letters", &d)
}

// addTimes adds how many died when.
func (d *deadData) addTimes(ctx context.Context, of []admin.TimeSource, failed func(pipeline string, err error)) {
	groups, earlier := admin.GroupByTime(ctx, deadGroups, failed, of...)
	d.Earlier = earlier
	for i := range groups {
		d.Times = append(d.Times, &groups[i])
		d.Days = groups[i].End.Sub(groups[i].Begin) > time.Hour
	}
}

// maxShownError is how many bytes of an error a list shows.
const maxShownError = 300

func (s *Console) deadRow(e *buffer.DeadEvent) deadRow {
	row := deadRow{
		DeadLetter: admin.NewDeadLetter(e, s.config.Redact), ID: e.Identity(), At: e.DiedAt, Open: e.ClosedAs == "", Closed: e.ClosedAs,
		Link: "dead/" + url.PathEscape(e.Pipeline) + "/" + url.PathEscape(e.Identity()),
	}
	if s.config.HidePayloads {
		row.DeadLetter = row.WithoutPayload()
	}
	if row.Key != nil {
		key := visible([]byte(*row.Key))
		row.Key = &key
	}
	row.Error = shorten(row.DeadLetter.Error, maxShownError)
	row.Topic = shorten(row.Topic, maxShownError)
	return row
}

// shorten cuts a text between characters.
func shorten(text string, size int) string {
	if len(text) <= size {
		return text
	}
	return strings.ToValidUTF8(text[:size], "") + "…"
}

// deadDetail is one dead letter in full.
type deadDetail struct {
	deadRow
	Event              *buffer.DeadEvent
	FullError          string
	Pretty, Raw        string
	Cut                bool   // the payload is longer than what is shown
	Try                string // link to what would be sent; "": payloads are hidden, or no sink takes the event
	Headers, EventRow  string
	Notified, ClosedAt time.Time
	ClosedBy, Reason   string
	Hook               bool // a hook is notified of it
}

// deadShow serves the dead letters of one event.
func (s *Console) deadShow(w http.ResponseWriter, r *http.Request) {
	selected, err := s.selected(r.PathValue("pipeline"))
	if err != nil {
		s.fail(w, r, http.StatusNotFound, err)
		return
	}
	p := selected[0]
	q, err := deadFilter{ID: r.PathValue("id"), Closed: true}.parse()
	if err != nil {
		s.fail(w, r, http.StatusBadRequest, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), deadTimeout)
	defer cancel()
	var letters []deadDetail
	err = p.Each(ctx, q, func(e *buffer.DeadEvent) (bool, error) {
		one := s.deadDetail(e)
		one.Hook = p.Notifies(e.Sink) || !e.NotifiedAt.IsZero()
		letters = append(letters, one)
		return len(letters) < deadPage, nil
	})
	switch {
	case err != nil:
		s.fail(w, r, http.StatusServiceUnavailable, err)
		return
	case letters == nil:
		s.fail(w, r, http.StatusNotFound, errors.New("no dead letter has this id"))
		return
	}
	slices.Reverse(letters) // the newest first
	s.render(w, r, http.StatusOK, "dead_show", "dead", p.Name+" "+letters[0].ID, map[string]any{"Pipeline": p.Name, "ID": letters[0].ID, "Letters": letters})
}
