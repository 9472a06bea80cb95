package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// maxShownAnswer is how many bytes of an answer are shown if a program fails on it.
const maxShownAnswer = 2000

// answerFlags are the flags of preview about an answer.
type answerFlags struct {
	answer, events string
	status         int
	headers        []string
}

func (f *answerFlags) bind(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.answer, "answer", "", "file with the body of an answer: show what it means for the events")
	flags.IntVar(&f.status, "status", http.StatusOK, "the answer's HTTP status")
	flags.StringArrayVar(&f.headers, "header", nil, "a header of the answer, 'Name: value'; repeat the flag for more")
	flags.StringVar(&f.events, "events-file", "", "file with the events, instead of those of the buffer")
}

// viewer returns the previewer of an answer; of requests without --answer.
func (f *answerFlags) viewer(c *cobra.Command) (previewer, error) {
	if f.answer == "" {
		for _, name := range []string{"status", "header"} {
			if c.Flags().Changed(name) {
				return nil, usage("--%s is used without --answer; expected --answer FILE", name)
			}
		}
		events, err := f.readEvents()
		return previewRequests(events), err
	}
	if f.status < 200 || f.status > 599 {
		return nil, usage("--status is %d; expected 200 to 599", f.status)
	}
	answer := sink.Answer{Status: f.status, Header: http.Header{}}
	for _, header := range f.headers {
		name, value, ok := strings.Cut(header, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, usage("--header is %q; expected 'Name: value'", header)
		}
		answer.Header.Add(name, strings.TrimSpace(value))
	}
	var err error
	if answer.Body, err = os.ReadFile(f.answer); err != nil {
		return nil, usage("--answer: %w", err)
	}
	events, err := f.readEvents()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, a *app, from buffer.Buffer, s config.RuntimeSink, limit int, again bool) ([]string, error) {
		return a.previewAnswer(ctx, from, s, limit, events, answer, again)
	}, nil
}

// readEvents returns the events of --events-file; nil without it.
func (f *answerFlags) readEvents() ([]outbox.Event, error) {
	if f.events == "" {
		return nil, nil
	}
	text, err := os.ReadFile(f.events)
	if err != nil {
		return nil, usage("--events-file: %w", err)
	}
	events, err := parseEnvelopes(text)
	if err != nil {
		return nil, usage("--events-file: %s: %w", f.events, err)
	}
	return events, nil
}

// previewAnswer shows what an answer means for events, or for the next ones of the buffer if events is nil.
func (a *app) previewAnswer(ctx context.Context, from buffer.Buffer, s config.RuntimeSink, limit int, events []outbox.Event, answer sink.Answer, again bool) (others []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, previewTimeout)
	defer cancel()
	to, ok := s.Sink.(sink.AnswerPreviewer)
	if !ok {
		return nil, fmt.Errorf("%s has no answers that a program reads; --answer is for http sinks", s.Config.Sink.URL)
	}
	patterns, err := buffer.ParsePatterns(s.Config.Match)
	if err != nil {
		return nil, err
	}
	lease := &buffer.Lease{Batch: buffer.Batch{Pipeline: s.Config.Name, Events: events}}
	if events == nil {
		lease, err = from.Peek(ctx, limit)
		switch {
		case err != nil:
			return nil, err
		case lease == nil:
			return nil, errors.New("the buffer has no events that are not claimed yet; expected --events-file FILE")
		case lease.ProjectErr != nil:
			return nil, fmt.Errorf("source.project fails: %w", lease.ProjectErr)
		}
	}
	var sent []outbox.Event
	for i := range lease.Events {
		if e := &lease.Events[i]; patterns.Match(e.Topic) {
			sent = append(sent, *e)
		} else {
			others = append(others, e.Topic)
		}
	}
	if len(sent) == 0 {
		return others, errors.New("none of the events is for this sink")
	}
	sent = sent[:min(len(sent), s.Config.BatchSize)] // those of one request
	b := batchOf(lease, sent)
	err = to.PreviewAnswer(ctx, b, answer)
	a.failed = a.failed || errors.Is(err, sink.ErrProgram)
	text := route(s.Config) + "\n" + a.describeAnswer(b, answer, err)
	if again {
		text = "\n" + text
	}
	_, err = io.WriteString(a.stdout, text)
	return others, err
}

// describeAnswer says what happens to each event of a batch after an answer.
func (a *app) describeAnswer(b *buffer.Batch, answer sink.Answer, err error) string {
	var text strings.Builder
	paint := painter(a.stdout)
	fmt.Fprintf(&text, "%s answered with %s; nothing was claimed or sent.\n\n", plural(int64(len(b.Events)), "event", "events"),
		strings.TrimSpace(strconv.Itoa(answer.Status)+" "+http.StatusText(answer.Status)))
	if batchErr, ok := errors.AsType[*sink.BatchError](err); ok || err == nil {
		failed := map[int]error{}
		if ok {
			for _, e := range batchErr.Events {
				failed[e.Index] = e.Err
			}
		}
		for i := range b.Events {
			what := paint(green, "delivered")
			if e := failed[i]; e != nil {
				what = paint(yellow, fate(e)+":") + " " + printable(a.redact(e.Error()))
			}
			fmt.Fprintf(&text, "event %s  %s\n", b.Events[i].Identity(), what)
		}
		return text.String()
	}
	what := "The events wait, and are sent again: an outage."
	switch {
	case errors.Is(err, sink.ErrProgram):
		what = "A program fails, so nobody knows what was accepted. The events wait, and are sent again:"
		if !errors.Is(err, sink.ErrMaybeAccepted) {
			what = "sink.request fails, so nothing would be sent:"
		}
	case !errors.Is(err, sink.ErrUnavailable) && len(b.Events) > 1:
		what = "The batch is rejected as a whole. It is halved until each rejected event is alone:"
	case !errors.Is(err, sink.ErrUnavailable):
		what = "The event is rejected:"
	}
	fmt.Fprintf(&text, "%s\n%s\n", paint(yellow, what), printable(a.redact(err.Error())))
	if errors.Is(err, sink.ErrProgram) {
		fmt.Fprintf(&text, "\nThe answer's body:\n%s\n", a.beginning(answer.Body))
	}
	return text.String()
}

// fate says what happens to an event that was not accepted.
func fate(err error) string {
	switch {
	case errors.Is(err, sink.ErrUnavailable):
		return "waits (an outage)"
	case errors.Is(err, sink.ErrPermanent):
		return "rejected for good"
	}
	return "rejected, sent again"
}

// beginning is the beginning of a text without secrets.
func (a *app) beginning(body []byte) string {
	text := a.redact(payload(body))
	if len(text) > maxShownAnswer {
		text = strings.ToValidUTF8(text[:maxShownAnswer], "") + "..."
	}
	return strings.TrimRight(text, "\n")
}

// envelope is an event as a sink gets it.
type envelope struct {
	ID            json.RawMessage `json:"id"`
	Topic         string          `json:"topic"`
	Key           *string         `json:"key"`
	Payload       json.RawMessage `json:"payload"`
	PayloadBase64 []byte          `json:"payload_base64"`
	Headers       json.RawMessage `json:"headers"`
	CreatedAt     time.Time       `json:"created_at"`
}

func (e *envelope) event() (event outbox.Event, err error) {
	event = outbox.Event{Topic: e.Topic, Key: e.Key, Payload: e.Payload, CreatedAt: e.CreatedAt}
	if e.PayloadBase64 != nil {
		event.Payload = e.PayloadBase64
	}
	if len(e.Headers) > 0 && string(e.Headers) != "null" {
		event.Headers = outbox.Headers(e.Headers)
	}
	id := strings.Trim(string(e.ID), `"`)
	if event.ID, err = strconv.ParseInt(id, 10, 64); err == nil {
		return event, nil
	}
	if event.UUID, err = uuid.Parse(id); err == nil {
		return event, nil
	}
	return event, fmt.Errorf("an event's id is %q; expected a number or a uuid", id)
}

// parseEnvelopes reads the events of a request's body, of an array, or of one envelope after the other.
func parseEnvelopes(text []byte) (events []outbox.Event, err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	for {
		var value json.RawMessage
		if err := dec.Decode(&value); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		var all []envelope
		var body struct {
			Events *[]envelope `json:"events"`
		}
		switch {
		case value[0] == '[':
			err = json.Unmarshal(value, &all)
		case json.Unmarshal(value, &body) == nil && body.Events != nil:
			all = *body.Events
		default:
			all = make([]envelope, 1)
			err = json.Unmarshal(value, &all[0])
		}
		if err != nil {
			return nil, err
		}
		for i := range all {
			event, err := all[i].event()
			if err != nil {
				return nil, err
			}
			events = append(events, event)
		}
	}
	if len(events) == 0 {
		return nil, errors.New(`it has no events; expected {"events": [...]}, or one envelope a line`)
	}
	if len(events) > maxPreviewed {
		return nil, fmt.Errorf("it has %d events; expected at most %d", len(events), maxPreviewed)
	}
	return events, nil
}
