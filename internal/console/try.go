package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/preview"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

const (
	// triedNext is how many of the next events are shown.
	triedNext = 3
	// maxTried is how large a form may be.
	maxTried = 4 << 20
)

// tryForm is what the page is asked.
type tryForm struct {
	Pipeline, Sink string
	// Dead is the id of a dead letter's event, Batch the group_id of a live batch, Pasted are events as JSON; the next events of the buffer if all are "".
	Dead, Batch, Pasted string
	// Status and Body are an answer; Status "": none.
	Status, Body string
}

// triedRequest is a request on the page.
type triedRequest struct {
	Events, Summary, Body string
	Header                []sink.Field
}

// triedFate is what becomes of an event.
type triedFate struct{ Event, Text, Class string }

// tryTarget is a pipeline, or one of its several sinks, that the page offers.
type tryTarget struct {
	Value    string // PIPELINE, or PIPELINE/SINK
	Selected bool
}

// tryData is what the page shows.
type tryData struct {
	tryForm
	Targets  []tryTarget
	Asked    bool
	Error    string
	Hidden   bool
	Notes    []string
	Requests []triedRequest
	Answered string // what happens to all events together
	Fates    []triedFate
}

// tryLink is the page for the next events, or for those of a dead letter.
func tryLink(pipeline, sink, dead string) string {
	return "try?" + url.Values{"pipeline": {pipeline}, "sink": {sink}, "dead": {dead}, "show": {"1"}}.Encode()
}

// tryIt shows the requests that events would make, and what an answer to them means. It claims, sends and writes nothing. Next events and
// dead letters can be picked by a link; what is pasted comes with POST, so that it is in no address.
func (s *Console) tryIt(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxTried)
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, http.StatusBadRequest, err)
		return
	}
	get := func(name string) string { return strings.TrimSpace(r.Form.Get(name)) }
	// A link runs no program on what it brings: only a request that is safe against others' pages, of a user who may change something, does.
	posted := func(name string) string { return strings.TrimSpace(r.PostForm.Get(name)) }
	d := tryData{tryForm: tryForm{get("pipeline"), get("sink"), get("dead"), get("batch"), posted("pasted"), posted("status"), posted("body")}, Asked: r.Form.Get("show") != "", Hidden: s.config.HidePayloads}
	if of := get("of"); of != "" { // the form names both in one field
		d.Pipeline, d.Sink, _ = strings.Cut(of, "/")
	}
	for _, p := range s.config.Previews {
		sinks := p.Sinks()
		if sinks == nil {
			d.Targets = append(d.Targets, tryTarget{p.Name(), p.Name() == d.Pipeline})
		}
		for i, name := range sinks {
			d.Targets = append(d.Targets, tryTarget{p.Name() + "/" + name, p.Name() == d.Pipeline && (name == d.Sink || d.Sink == "" && i == 0)})
		}
	}
	code := http.StatusOK
	if d.Asked {
		if err := s.try(r.Context(), &d); err != nil {
			d.Error, code = visible([]byte(s.config.Redact(err.Error()))), http.StatusUnprocessableEntity
		}
	}
	s.render(w, r, code, "try", "try", "Try it", &d)
}

// previews finds those of a pipeline.
func (s *Console) previews(name string) (preview.Pipeline, error) {
	for _, p := range s.config.Previews {
		if p.Name() == name {
			return p, nil
		}
	}
	return preview.Pipeline{}, fmt.Errorf("pipeline %q does not exist in this relay", name)
}

// try fills in the requests and the fates.
func (s *Console) try(ctx context.Context, d *tryData) error {
	p, err := s.previews(d.Pipeline)
	if err != nil {
		return err
	}
	var (
		events []outbox.Event
		result preview.Result
	)
	switch {
	case d.Pasted != "":
		if events, err = preview.ParseEvents([]byte(d.Pasted)); err != nil {
			return fmt.Errorf("the pasted events: %w", err)
		}
		for i := range events {
			if events[i].CreatedAt.IsZero() {
				events[i].CreatedAt = time.Now()
			}
		}
	case s.config.HidePayloads && d.Status != "" && d.Dead == "" && d.Batch == "":
		if events, err = example(p, d); err != nil {
			return err
		}
	case s.config.HidePayloads:
		return errors.New("admin.payloads is false, so events of the database are not shown; paste one")
	case d.Dead != "":
		e, err := s.openLetter(ctx, d.Pipeline, d.Dead, d.Sink)
		if err != nil {
			return err
		}
		events = []outbox.Event{e.Event}
		if e.Row != nil {
			d.Notes = append(d.Notes, "This is what was sent. A replay inserts the row again, and the projection makes the event of it then.")
		}
	}
	switch {
	case d.Batch != "" && d.Pasted == "" && d.Dead == "":
		var id uuid.UUID
		if id, err = uuid.Parse(d.Batch); err != nil {
			return fmt.Errorf("the batch is %q; expected its group_id", d.Batch)
		}
		if result, events, err = p.Batch(ctx, d.Sink, id, triedNext); err == nil {
			d.Notes = append(d.Notes, fmt.Sprintf("These are the first events of the batch, at most %d. It stays as it is.", triedNext))
		}
		if err == nil && len(events) == 0 && result.ProjectErr == nil && len(result.Rejected)+len(result.Unprojected) == 0 {
			return errors.New("none of the batch's events is left")
		}
	case events == nil:
		if result, err = p.Next(ctx, d.Sink, triedNext); err == nil && d.Status != "" && result.Events == 0 {
			if events, err = example(p, d); err == nil {
				result, err = p.Events(ctx, d.Sink, events)
			}
		}
	default:
		result, err = p.Events(ctx, d.Sink, events)
	}
	if err != nil {
		return err
	}
	s.addTried(d, &result)
	if d.Status == "" || d.Batch != "" && len(events) == 0 {
		return nil
	}
	status, err := strconv.Atoi(d.Status)
	if err != nil || status < 200 || status > 599 {
		return fmt.Errorf("the status is %q; expected 200 to 599", d.Status)
	}
	answered, err := p.Answer(ctx, d.Sink, triedNext, events, sink.Answer{Status: status, Header: http.Header{}, Body: []byte(d.Body)})
	if err != nil {
		return err
	}
	s.addAnswered(d, &answered)
	return nil
}

// example returns an event to try an answer with, and says so.
func example(p preview.Pipeline, d *tryData) ([]outbox.Event, error) {
	e, err := p.Example(d.Sink)
	if err != nil {
		return nil, err
	}
	d.Notes = append(d.Notes, "The answer is tried with an example event. Paste one of yours to see its own request.")
	return []outbox.Event{e}, nil
}

// addTried adds the requests, without secrets.
func (s *Console) addTried(d *tryData, result *preview.Result) {
	clean := func(text string) string { return visible([]byte(s.config.Redact(text))) }
	note := func(text string, args ...any) { d.Notes = append(d.Notes, clean(fmt.Sprintf(text, args...))) }
	switch {
	case result.Events == 0 && result.Claimed.Pending > 0:
		note("All events are claimed already: they are being sent, or wait for a retry. %s", result.Why)
	case result.Events == 0 && result.Claimed.Delayed > 0:
		note("No event is due yet. Delayed: %s.", admin.Pending(result.Claimed.Delayed))
	case result.Excluded > 0:
		note("No event waits to be claimed: source.where excludes the rows of the table.")
	case result.Events == 0:
		note("No event waits to be claimed.")
	case result.ProjectErr != nil:
		note("source.project fails, so nothing would be sent: %v", result.ProjectErr)
	case len(result.Others) == result.Events:
		note("None of the events is for this sink.")
	case len(result.Others) > 0:
		note("%d of the %d events are not for this sink.", len(result.Others), result.Events)
	}
	for _, one := range result.Requests {
		shown := triedRequest{Events: idsText(one.IDs), Summary: clean(one.Summary), Body: clean(string(pretty(one.Body)))}
		for _, f := range one.Header {
			shown.Header = append(shown.Header, sink.Field{Name: clean(f.Name), Value: clean(f.Value)})
		}
		d.Requests = append(d.Requests, shown)
	}
	for _, id := range result.Unprojected {
		note("Event %s is not sent: source.project returns no row. It becomes a dead letter.", id)
	}
	if result.WithoutHeaders != nil {
		note("The headers of %s are not sent: the request program ignores them.", idsText(result.WithoutHeaders))
	}
	for _, one := range result.Rejected {
		note("Event %s is not sent: %v", one.Event, one.Err)
	}
}

// idsText lists some ids: "event 7", "events 7, 8 and 98 more".
func idsText(ids []string) string {
	const listed = 5
	if len(ids) == 1 {
		return "event " + ids[0]
	}
	if more := len(ids) - listed; more > 0 {
		return fmt.Sprintf("events %s and %d more", strings.Join(ids[:listed], ", "), more)
	}
	return "events " + strings.Join(ids, ", ")
}

// addAnswered adds what becomes of the events.
func (s *Console) addAnswered(d *tryData, a *preview.Answered) {
	clean := func(err error) string { return visible([]byte(s.config.Redact(err.Error()))) }
	for _, f := range a.Fates {
		one := triedFate{Event: f.Event, Text: f.Word(), Class: "good"}
		if f.Err != nil {
			one.Text, one.Class = one.Text+": "+clean(f.Err), "warn"
		}
		d.Fates = append(d.Fates, one)
	}
	if a.Fates == nil {
		d.Answered = a.Whole() + "\n" + clean(a.Err)
	}
}

// openLetter returns an open dead letter of an event; of a sink, if it is named.
func (s *Console) openLetter(ctx context.Context, pipeline, id, of string) (*buffer.DeadEvent, error) {
	selected, err := s.selected(pipeline)
	if err != nil {
		return nil, err
	}
	q, err := deadFilter{ID: id, Sink: of}.parse()
	if err != nil {
		return nil, err
	}
	if len(q.IDs)+len(q.UUIDs) != 1 {
		return nil, errors.New("expected the id of one event")
	}
	ctx, cancel := context.WithTimeout(ctx, deadTimeout)
	defer cancel()
	var found *buffer.DeadEvent
	err = selected[0].Each(ctx, q, func(e *buffer.DeadEvent) (bool, error) {
		found = e
		return false, nil
	})
	if err == nil && found == nil {
		err = errNoLetter
	}
	return found, err
}

var errNoLetter = errors.New("no open dead letter has this id; somebody may have replayed or discarded it")
