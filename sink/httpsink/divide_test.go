package httpsink_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// isError compares errors by whether there is one.
var isError = cmp.Comparer(func(a, b error) bool { return (a == nil) == (b == nil) })

func TestDivide(t *testing.T) {
	t.Parallel()
	url := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("something was sent") })
	b := batch("a b", "c", "a b", "d")
	for i, key := range []string{"1&2", "2", "1&2"} {
		b.Events[i].Key = &key
	}
	err := open(t, httpsink.Config{URL: url + "/{topic}?k={key}"}).Send(within(t), b)
	var divide *sink.SplitError
	if !errors.As(err, &divide) || errors.Is(err, sink.ErrUnavailable) || errors.Is(err, sink.ErrPermanent) {
		t.Fatalf("got %v, want a *sink.SplitError", err)
	}
	want := []sink.Group{
		{Address: url + "/a%20b?k=1%262", Indexes: []int{0, 2}}, {Address: url + "/c?k=2", Indexes: []int{1}}, {Indexes: []int{3}, Err: sink.ErrPermanent},
	}
	if diff := cmp.Diff(want, divide.Groups, isError); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
}

// TestMaxBytes: each body is as full as max_bytes lets it be, and not a byte fuller.
func TestMaxBytes(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "ndjson"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			var bodies []string
			url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
				text, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				bodies = append(bodies, string(text))
			})
			b := batch(slices.Repeat([]string{"a"}, 10)...)
			for i := range b.Events {
				b.Events[i].Payload = fmt.Appendf(nil, "%q", strings.Repeat("x", 50*i%170))
			}
			ok(t, open(t, httpsink.Config{URL: url, Format: format}).Send(within(t), b))
			whole := len(bodies[0])
			for most := whole; most > 0; most -= 7 {
				bodies = nil
				s := open(t, httpsink.Config{URL: url, Format: format, MaxBytes: most})
				err := s.Send(within(t), b)
				if divide, ok := errors.AsType[*sink.SplitError](err); ok {
					if len(bodies) > 0 || most == whole {
						t.Fatalf("max_bytes %d: divided, and %d requests made, of %d bytes", most, len(bodies), whole)
					}
					expectParts(t, s, b, divide, &bodies, most)
					continue
				}
				expectWhole(t, err, bodies, most)
			}
		})
	}
}

// expectParts sends the parts and fails unless each fits, none could take the next
// one's first event, and each event is in one of them or too large alone.
func expectParts(t *testing.T, s *httpsink.Sink, b *buffer.Batch, divide *sink.SplitError, bodies *[]string, most int) {
	t.Helper()
	var seen []int
	before := 0 // bytes of the part before
	for _, g := range divide.Groups {
		seen = append(seen, g.Indexes...)
		p := *b
		p.Events = nil
		for _, i := range g.Indexes {
			p.Events = append(p.Events, b.Events[i])
		}
		*bodies = nil
		err := s.Send(within(t), &p)
		if some, ok := errors.AsType[*sink.BatchError](err); ok {
			if len(some.Events) != len(p.Events) {
				t.Fatalf("max_bytes %d: %d of %d events in a part are refused", most, len(some.Events), len(p.Events))
			}
			expectWhole(t, err, *bodies, most)
			continue
		}
		expectWhole(t, err, *bodies, most)
		first := len(sink.AppendEnvelope(nil, &p.Events[0], true)) + 1
		if before > 0 && before+first <= most {
			t.Errorf("max_bytes %d: the next event, of %d bytes, would have fitted into a body of %d", most, first, before)
		}
		before = len((*bodies)[0])
	}
	slices.Sort(seen)
	if len(seen) != len(b.Events) || len(slices.Compact(seen)) != len(b.Events) {
		t.Errorf("max_bytes %d: the parts hold %v", most, seen)
	}
}

// expectWhole fails unless what was sent fits and what was refused does not, even
// alone.
func expectWhole(t *testing.T, err error, bodies []string, most int) {
	t.Helper()
	for _, body := range bodies {
		if len(body) > most {
			t.Errorf("max_bytes %d: a body has %d", most, len(body))
		}
	}
	some, partly := errors.AsType[*sink.BatchError](err)
	if !partly {
		ok(t, err)
		return
	}
	for _, e := range some.Events {
		var bytes, limit int
		if _, err := fmt.Sscanf(e.Err.Error(), "its body is %d bytes; expected at most %d", &bytes, &limit); err != nil || bytes <= most || limit != most {
			t.Errorf("max_bytes %d: an event is refused with %q", most, e.Err)
		}
		if !errors.Is(e.Err, sink.ErrPermanent) {
			t.Errorf("max_bytes %d: %v is not for good", most, e.Err)
		}
	}
}

// sendParts sends a batch as a worker does: where some events are refused before anything
// is sent, the others go out by themselves. The indexes are the batch's.
func sendParts(t *testing.T, s *httpsink.Sink, b *buffer.Batch) error {
	t.Helper()
	err := s.Send(within(t), b)
	divide, isDivide := errors.AsType[*sink.SplitError](err)
	if !isDivide {
		return err
	}
	all := &sink.BatchError{}
	for _, g := range divide.Groups {
		part := *b
		part.GroupID, part.Events = uuid.New(), nil
		for _, i := range g.Indexes {
			part.Events = append(part.Events, b.Events[i])
			if g.Err != nil {
				all.Events = append(all.Events, sink.EventError{Index: i, Err: g.Err})
			}
		}
		if g.Err != nil {
			continue
		}
		err := s.Send(within(t), &part)
		some, partly := errors.AsType[*sink.BatchError](err)
		if !partly {
			ok(t, err)
			continue
		}
		for _, e := range some.Events {
			all.Events = append(all.Events, sink.EventError{Index: g.Indexes[e.Index], Err: e.Err})
		}
	}
	slices.SortFunc(all.Events, func(a, b sink.EventError) int { return a.Index - b.Index })
	return all
}

// TestASetIsNeverSentInPart: under its group_id nothing goes out but all of it.
func TestASetIsNeverSentInPart(t *testing.T) {
	t.Parallel()
	sent := map[string]int{}
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		sent[r.Header.Get("Idempotency-Key")] = strings.Count(string(text), `"id":`)
	})
	s := open(t, httpsink.Config{URL: url, MaxBytes: 500})
	b := batch("a", "a", "a")
	small := b.Events[1].Payload
	b.Events[1].Payload = fmt.Appendf(nil, "%q", strings.Repeat("x", 1000))
	if err := s.Send(within(t), b); !errors.As(err, new(*sink.SplitError)) || len(sent) > 0 {
		t.Errorf("got %v, want a *sink.SplitError; sent %v", err, sent)
	}
	b.Events[1].Payload = small // projected anew, it fits
	ok(t, s.Send(within(t), b))
	if diff := cmp.Diff(map[string]int{groupID.String(): 3}, sent); diff != "" {
		t.Errorf("events by Idempotency-Key (-want +got):\n%s", diff)
	}
}

// TestAnEventTooLargeIsRefusedAlone: those beside it are delivered.
func TestAnEventTooLargeIsRefusedAlone(t *testing.T) {
	t.Parallel()
	var body atomic.Value
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		body.Store(string(text))
	})
	b := batch("a", "a", "a")
	b.Events[1].Payload = fmt.Appendf(nil, "%q", strings.Repeat("x", 1000))
	refused(t, sendParts(t, open(t, httpsink.Config{URL: url, MaxBytes: 500}), b), 1)
	got := body.Load().(string)
	if strings.Count(got, `"id":`) != 2 || strings.Contains(got, "xxx") {
		t.Errorf("sent: %q", got)
	}
	// Exactly as large as may be.
	b = batch("a", "a", "a")
	ok(t, open(t, httpsink.Config{URL: url, MaxBytes: len(got) + len(sink.AppendEnvelope(nil, &b.Events[1], true)) + 1}).Send(within(t), b))
	err := open(t, httpsink.Config{URL: url, MaxBytes: len(got) + len(sink.AppendEnvelope(nil, &b.Events[1], true))}).Send(within(t), b)
	if divide, ok := errors.AsType[*sink.SplitError](err); !ok || !cmp.Equal(divide.Groups, []sink.Group{{Indexes: []int{0, 1}}, {Indexes: []int{2}}}) {
		t.Errorf("a byte less: got %v", err)
	}
}

func TestEventsThatCannotBeSent(t *testing.T) {
	t.Parallel()
	var body atomic.Value
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		body.Store(string(text))
	})
	key := "k"
	b := batch("a", "a", "a")
	b.Events[0].Key, b.Events[2].Key = &key, &key
	b.Events[2].Headers = outbox.Headers("{")
	refused(t, sendParts(t, open(t, httpsink.Config{URL: url + "/{key}", Format: "ndjson"}), b), 1, 2)
	if got := body.Load().(string); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"id":"1"`) {
		t.Errorf("sent: %q", got)
	}
	up := ".."
	b = batch("a")
	b.Events[0].Key = &up
	refused(t, open(t, httpsink.Config{URL: url + "/{key}/in"}).Send(within(t), b), 0)
}

// refused expects a *sink.BatchError that names those events, for good.
func refused(t *testing.T, err error, want ...int) {
	t.Helper()
	var some *sink.BatchError
	if !errors.As(err, &some) {
		t.Fatalf("got %v, want a *sink.BatchError", err)
	}
	var got []int
	for _, e := range some.Events {
		if errors.Is(e.Err, sink.ErrPermanent) {
			got = append(got, e.Index)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
}
