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

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// isError compares errors only by whether they are nil.
var isError = cmp.Comparer(func(a, b error) bool { return (a == nil) == (b == nil) })

func TestSplit_ByAddress(t *testing.T) {
	t.Parallel()
	url := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("something was sent") })
	b := batch("a b", "c", "a b", "d")
	for i, key := range []string{"1&2", "2", "1&2"} {
		b.Events[i].Key = &key
	}
	err := open(t, httpsink.Config{URL: url + "/{topic}?k={key}"}).Send(testContext(t), b)
	var split *sink.SplitError
	if !errors.As(err, &split) || errors.Is(err, sink.ErrUnavailable) || errors.Is(err, sink.ErrPermanent) {
		t.Fatalf("got %v, want a *sink.SplitError", err)
	}
	want := []sink.Group{
		{Address: url + "/a%20b?k=1%262", Indexes: []int{0, 2}}, {Address: url + "/c?k=2", Indexes: []int{1}}, {Indexes: []int{3}, Err: sink.ErrPermanent},
	}
	if diff := cmp.Diff(want, split.Groups, isError); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
}

// TestMaxBytes expects each body to be as large as max_bytes allows.
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
			testkit.NoError(t, open(t, httpsink.Config{URL: url, Format: format}).Send(testContext(t), b))
			whole := len(bodies[0])
			for most := whole; most > 0; most -= 7 {
				bodies = nil
				s := open(t, httpsink.Config{URL: url, Format: format, MaxBytes: most})
				err := s.Send(testContext(t), b)
				if split, ok := errors.AsType[*sink.SplitError](err); ok {
					if len(bodies) > 0 || most == whole {
						t.Fatalf("max_bytes %d: split, and %d requests made, of %d bytes", most, len(bodies), whole)
					}
					expectGroups(t, s, b, split, &bodies, most)
					continue
				}
				expectFit(t, err, bodies, most)
			}
		})
	}
}

// expectGroups sends the groups. Each must fit, none must have room for the first event of the next one, and
// each event must be in one of them or be too large alone.
func expectGroups(t *testing.T, s *httpsink.Sink, b *buffer.Batch, split *sink.SplitError, bodies *[]string, most int) {
	t.Helper()
	var seen []int
	before := 0 // bytes of the part before
	for _, g := range split.Groups {
		seen = append(seen, g.Indexes...)
		p := *b
		p.Events = nil
		for _, i := range g.Indexes {
			p.Events = append(p.Events, b.Events[i])
		}
		*bodies = nil
		err := s.Send(testContext(t), &p)
		if some, ok := errors.AsType[*sink.BatchError](err); ok {
			if len(some.Events) != len(p.Events) {
				t.Fatalf("max_bytes %d: %d of %d events in a group are rejected", most, len(some.Events), len(p.Events))
			}
			expectFit(t, err, *bodies, most)
			continue
		}
		expectFit(t, err, *bodies, most)
		first := len(sink.AppendEnvelope(nil, &p, 0)) + 1
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

// expectFit expects the bodies to fit, and the rejected events not to fit alone.
func expectFit(t *testing.T, err error, bodies []string, most int) {
	t.Helper()
	for _, body := range bodies {
		if len(body) > most {
			t.Errorf("max_bytes %d: a body has %d", most, len(body))
		}
	}
	some, partly := errors.AsType[*sink.BatchError](err)
	if !partly {
		testkit.NoError(t, err)
		return
	}
	for _, e := range some.Events {
		var bytes, limit int
		if _, err := fmt.Sscanf(e.Err.Error(), "its body is %d bytes; expected at most %d", &bytes, &limit); err != nil || bytes <= most || limit != most {
			t.Errorf("max_bytes %d: an event is rejected with %q", most, e.Err)
		}
		if !errors.Is(e.Err, sink.ErrPermanent) {
			t.Errorf("max_bytes %d: %v is not for good", most, e.Err)
		}
	}
}

// sendSplit sends a batch as a worker does: if it has to be split, it sends each group. The indexes in the
// error are the batch's.
func sendSplit(t *testing.T, s *httpsink.Sink, b *buffer.Batch) error {
	t.Helper()
	err := s.Send(testContext(t), b)
	split, isSplit := errors.AsType[*sink.SplitError](err)
	if !isSplit {
		return err
	}
	all := &sink.BatchError{}
	for _, g := range split.Groups {
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
		err := s.Send(testContext(t), &part)
		some, partly := errors.AsType[*sink.BatchError](err)
		if !partly {
			testkit.NoError(t, err)
			continue
		}
		for _, e := range some.Events {
			all.Events = append(all.Events, sink.EventError{Index: g.Indexes[e.Index], Err: e.Err})
		}
	}
	slices.SortFunc(all.Events, func(a, b sink.EventError) int { return a.Index - b.Index })
	return all
}

// TestSend_NeverPartOfAGroup expects either all events or none under a group_id.
func TestSend_NeverPartOfAGroup(t *testing.T) {
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
	if err := s.Send(testContext(t), b); !errors.As(err, new(*sink.SplitError)) || len(sent) > 0 {
		t.Errorf("got %v, want a *sink.SplitError; sent %v", err, sent)
	}
	b.Events[1].Payload = small // projected anew, it fits
	testkit.NoError(t, s.Send(testContext(t), b))
	if diff := cmp.Diff(map[string]int{groupID.String(): 3}, sent); diff != "" {
		t.Errorf("events by Idempotency-Key (-want +got):\n%s", diff)
	}
}

// TestMaxBytes_LargeEvent expects the other events to be delivered.
func TestMaxBytes_LargeEvent(t *testing.T) {
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
	expectRejected(t, sendSplit(t, open(t, httpsink.Config{URL: url, MaxBytes: 500}), b), 1)
	got := body.Load().(string)
	if strings.Count(got, `"id":`) != 2 || strings.Contains(got, "xxx") {
		t.Errorf("sent: %q", got)
	}
	// Exactly max_bytes.
	b = batch("a", "a", "a")
	testkit.NoError(t, open(t, httpsink.Config{URL: url, MaxBytes: len(got) + len(sink.AppendEnvelope(nil, b, 1)) + 1}).Send(testContext(t), b))
	err := open(t, httpsink.Config{URL: url, MaxBytes: len(got) + len(sink.AppendEnvelope(nil, b, 1))}).Send(testContext(t), b)
	if split, ok := errors.AsType[*sink.SplitError](err); !ok || !cmp.Equal(split.Groups, []sink.Group{{Indexes: []int{0, 1}}, {Indexes: []int{2}}}) {
		t.Errorf("a byte less: got %v", err)
	}
}

func TestSend_RejectedEvents(t *testing.T) {
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
	expectRejected(t, sendSplit(t, open(t, httpsink.Config{URL: url + "/{key}", Format: "ndjson"}), b), 1, 2)
	if got := body.Load().(string); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"id":"1"`) {
		t.Errorf("sent: %q", got)
	}
	up := ".."
	b = batch("a")
	b.Events[0].Key = &up
	expectRejected(t, open(t, httpsink.Config{URL: url + "/{key}/in"}).Send(testContext(t), b), 0)
}

// expectRejected expects a *sink.BatchError that rejects exactly these events for good.
func expectRejected(t *testing.T, err error, want ...int) {
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
