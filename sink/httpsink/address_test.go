package httpsink_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// TestAnAddressThatIsAway: with a URL of many addresses an answer that is an outage
// is this address' alone, so that it does not stop the others; without an answer,
// or with one URL, it is the sink's.
func TestAnAddressThatIsAway(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/busy" {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if r.URL.Path == "/broken" {
			http.Error(w, "", http.StatusInternalServerError)
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(server.Close)
	send := func(url, topic string) error {
		s, err := httpsink.New(httpsink.Config{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		return s.Send(t.Context(), &buffer.Batch{
			GroupID: buffer.NewGroupID(), PayloadIsJSON: true,
			Events: []outbox.Event{{ID: 1, Topic: topic, Payload: []byte("{}")}, {ID: 2, Topic: topic, Payload: []byte("{}")}},
		})
	}
	var some *sink.BatchError
	err := send(server.URL+"/{topic}", "missing")
	if !errors.Is(err, sink.ErrUnavailable) || !errors.As(err, &some) || len(some.Events) != 2 || !errors.Is(some.Events[1].Err, sink.ErrUnavailable) {
		t.Errorf("404 at one of many addresses: %v", err)
	}
	err = send(server.URL+"/{topic}", "broken")
	if !errors.Is(err, sink.ErrMaybePoison) || !errors.As(err, &some) || !errors.Is(some.Events[1].Err, sink.ErrMaybePoison) {
		t.Errorf("500 at one of many addresses: %v", err)
	}
	for name, err := range map[string]error{
		"the only address": send(server.URL+"/missing", "x"),
		"nobody there":     send("http://127.0.0.1:1/{topic}", "x"),
		"Retry-After":      send(server.URL+"/{topic}", "busy"),
	} {
		if !errors.Is(err, sink.ErrUnavailable) || errors.As(err, &some) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
