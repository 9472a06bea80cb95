package filesink_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Preview returns what Send writes, and writes nothing itself.
func TestPreview(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.ndjson")
	s := open(t, path)
	defer func() {
		testkit.NoError(t, s.Close())
	}()
	b := &buffer.Batch{PayloadIsJSON: true}
	for i, headers := range []string{`{"a": "1"}`, `"none"`, `{}`} {
		b.Events = append(b.Events, outbox.Event{ID: int64(i + 1), Topic: "t", Payload: []byte("{\n}"), Headers: outbox.Headers(headers)})
	}
	preview, err := s.Preview(t.Context(), b)
	var rejected *sink.BatchError
	if !errors.As(err, &rejected) || len(rejected.Events) != 1 || rejected.Events[0].Index != 1 {
		t.Fatalf("got %v, want event 1 rejected", err)
	}
	if len(preview) != 1 || preview[0].Summary != "append to "+path || !slices.Equal(preview[0].Events, []int{0, 2}) {
		t.Fatalf("preview is %+v", preview)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the file exists: %v", err)
	}
	if err := s.Send(t.Context(), b); !errors.As(err, &rejected) {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	testkit.NoError(t, err)
	if string(text) != string(preview[0].Body) {
		t.Errorf("written is\n%s; preview is\n%s", text, preview[0].Body)
	}

	b.Events = b.Events[1:2]
	if preview, err := s.Preview(t.Context(), b); len(preview) > 0 || !errors.As(err, &rejected) {
		t.Errorf("preview is %+v, %v", preview, err)
	}
}
