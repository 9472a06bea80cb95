package httpsink_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// TestHeaders_Templated expects the batch to be split by its templated headers, and an event whose value
// cannot be a header to be rejected alone.
func TestHeaders_Templated(t *testing.T) {
	t.Parallel()
	var got []string
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get("X-Tenant")+" "+r.Header.Get("X-Braces")+" "+r.Header.Get("Idempotency-Key"))
	})
	s := open(t, httpsink.Config{URL: url, Headers: map[string]string{
		"x-tenant": "s3cret-{key}", "X-Braces": `{"a": {id}, "t": "{topic}"}`, "Idempotency-Key": "{topic}/{key}",
	}})
	b := batch("a", "a", "a", "b", "a")
	for i, key := range []string{"k", "l", "k", "k", "\r\nX-Evil: 1"} {
		b.Events[i].Key = &key
	}
	var split *sink.SplitError
	if err := s.Send(testContext(t), b); !errors.As(err, &split) {
		t.Fatalf("got %v, want a *sink.SplitError", err)
	}
	want := []sink.Group{{Address: url, Indexes: []int{0, 2}}, {Address: url, Indexes: []int{1}}, {Address: url, Indexes: []int{3}}, {Indexes: []int{4}, Err: sink.ErrPermanent}}
	if diff := cmp.Diff(want, split.Groups, isError); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	one := *b
	one.Events = []outbox.Event{b.Events[0], b.Events[2], b.Events[4]}
	err := sendSplit(t, s, &one)
	expectRejected(t, err, 2)
	if text := err.Error(); strings.Contains(text, "s3cret") || !strings.Contains(text, "line break or a control character; expected none for the header") {
		t.Errorf("got %q", text)
	}
	if diff := cmp.Diff([]string{`s3cret-k {"a": {id}, "t": "a"} a/k`}, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	b = batch("a") // no key
	expectRejected(t, s.Send(testContext(t), b), 0)
	if _, isOne := s.AddressOf(&b.Events[0]); isOne || s.OneAddress() {
		t.Error("an event without a key has an address, or all have one")
	}
	first, _ := s.AddressOf(&one.Events[0])
	if second, _ := s.AddressOf(&one.Events[1]); first != second || strings.Contains(first, "s3cret") || first == "" {
		t.Errorf("the addresses are %q and %q", first, second)
	}
	if _, err := httpsink.New(httpsink.Config{URL: url, Headers: map[string]string{"Host": "{key}.example"}}); err == nil {
		t.Error("a Host made of keys is taken")
	}
}

// TestHeaders_UnavailableAddress expects an outage of one value of the header.
func TestHeaders_UnavailableAddress(t *testing.T) {
	t.Parallel()
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	key := "k"
	b := batch("a")
	b.Events[0].Key = &key
	err := open(t, httpsink.Config{URL: url, Headers: map[string]string{"X-Token": "s3cret-{key}"}}).Send(testContext(t), b)
	expectOutage(t, err)
	if some, ok := errors.AsType[*sink.BatchError](err); !ok || len(some.Events) != 1 || strings.Contains(err.Error(), "s3cret") || !errors.Is(err, sink.ErrNotAccepted) {
		t.Errorf("got %v, want an outage of the event's address that accepted nothing", err)
	}
}

func TestHeaders_EchoedSecrets(t *testing.T) {
	t.Parallel()
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		write(t, w, "got "+r.Header.Get("X-Token"))
	})
	key := "k"
	b := batch("a")
	b.Events[0].Key = &key
	err := open(t, httpsink.Config{URL: url, Headers: map[string]string{"X-Token": "s3cret-{key}"}}).Send(testContext(t), b)
	if want := "got ***k"; !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("got %v, want %q in it", err, want)
	}
}
