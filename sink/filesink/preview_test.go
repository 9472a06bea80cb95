package filesink_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// What is previewed is what is written then, and nothing before.
func TestPreview(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.ndjson")
	s := open(t, path)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	b := &buffer.Batch{PayloadIsJSON: true}
	for i, headers := range []string{`{"a": "1"}`, `"none"`, `{}`} {
		b.Events = append(b.Events, outbox.Event{ID: int64(i + 1), Topic: "t", Payload: []byte("{\n}"), Headers: outbox.Headers(headers)})
	}
	shown, err := s.Preview(t.Context(), b)
	var refused *sink.BatchError
	if !errors.As(err, &refused) || len(refused.Events) != 1 || refused.Events[0].Index != 1 {
		t.Fatalf("got %v, want that event 1 is refused", err)
	}
	if len(shown) != 1 || shown[0].Summary != "append to "+path || !slices.Equal(shown[0].Events, []int{0, 2}) {
		t.Fatalf("shown was %+v", shown)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("there is a file: %v", err)
	}
	if err := s.Send(t.Context(), b); !errors.As(err, &refused) {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != string(shown[0].Body) {
		t.Errorf("written was\n%s, shown was\n%s", text, shown[0].Body)
	}

	b.Events = b.Events[1:2]
	if shown, err := s.Preview(t.Context(), b); len(shown) > 0 || !errors.As(err, &refused) {
		t.Errorf("shown was %+v, %v", shown, err)
	}
}
