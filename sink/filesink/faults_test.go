package filesink_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/filesink"
)

func newSink(t testing.TB, c filesink.Config, w io.Writer) *filesink.Sink {
	t.Helper()
	s, err := filesink.New(c, w)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return s
}

func stdout(t testing.TB, w io.Writer) *filesink.Sink {
	t.Helper()
	return newSink(t, filesink.Config{URL: "stdout:"}, w)
}

// batch makes events with the ids first to last.
func batch(first, last int64) *buffer.Batch {
	b := &buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: "orders", PayloadIsJSON: true, FirstSend: true}
	for id := first; id <= last; id++ {
		b.Events = append(b.Events, outbox.Event{
			ID: id, Topic: "orders", Payload: fmt.Appendf(nil, `{"order":%d}`, id), CreatedAt: time.Unix(0, 0),
		})
	}
	return b
}

func send(t *testing.T, s sink.Sink, b *buffer.Batch) {
	t.Helper()
	if err := s.Send(t.Context(), b); err != nil {
		t.Fatalf("Send: %v", err)
	}
}

func outage(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, sink.ErrUnavailable) || errors.Is(err, sink.ErrPermanent) {
		t.Fatalf("got %v, want an outage", err)
	}
}

// ids reads the file and fails where a line is not an envelope.
func ids(t *testing.T, path string) string {
	t.Helper()
	var all []string
	for _, a := range arrivals(t, path) {
		all = append(all, a.ID)
	}
	return strings.Join(all, " ")
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %q, want %q", what, got, want)
	}
}

func TestBrokenPipe(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer closeFile(t, w)
	s := stdout(t, w)
	send(t, s, batch(1, 1))
	closeFile(t, r)
	err = s.Send(t.Context(), batch(2, 2))
	outage(t, err)
	if !errors.Is(err, syscall.EPIPE) {
		t.Errorf("got %v, want one that wraps EPIPE", err)
	}
}

// tearing is an output that fails after so many bytes, once.
type tearing struct {
	bytes.Buffer
	room int
}

func (w *tearing) Write(p []byte) (int, error) {
	if w.room > 0 && w.room < len(p) {
		n, err := w.Buffer.Write(p[:w.room])
		w.room = 0
		return n, errors.Join(err, io.ErrShortWrite)
	}
	return w.Buffer.Write(p)
}

func TestHalfLineOnStdoutIsEnded(t *testing.T) {
	t.Parallel()
	w := &tearing{room: 20}
	s := stdout(t, w)
	outage(t, s.Send(t.Context(), batch(1, 1)))
	send(t, s, batch(1, 1))
	line := sink.AppendLine(nil, &batch(1, 1).Events[0], true)
	expect(t, "output", w.String(), string(line[:20])+"\n"+string(line))
}

func TestHalfLineOfAKilledProcessIsEnded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.ndjson")
	if err := os.WriteFile(path, []byte(`{"id":"1","to`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, path)
	send(t, s, batch(1, 1))
	send(t, s, batch(2, 2))
	got := lines(t, path)
	if len(got) != 3 {
		t.Fatalf("got %d lines, want the half one and two: %q", len(got), got)
	}
	expect(t, "half line", string(got[0]), `{"id":"1","to`)
}

func TestRotation(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	path := filepath.Join(folder, "events.ndjson")
	s := open(t, path)
	send(t, s, batch(1, 2))
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	send(t, s, batch(3, 4))
	send(t, s, batch(5, 5))
	expect(t, "ids in the old file", ids(t, path+".1"), "1 2")
	expect(t, "ids in the new file", ids(t, path), "3 4 5")

	if err := os.Rename(path, path+".2"); err != nil { // and something else is there at once
		t.Fatal(err)
	}
	closeFile(t, create(t, path))
	send(t, s, batch(6, 6))
	expect(t, "ids in the next file", ids(t, path), "6")

	if err := os.Truncate(path, 0); err != nil { // logrotate's copytruncate
		t.Fatal(err)
	}
	send(t, s, batch(7, 7))
	expect(t, "ids after truncation", ids(t, path), "7")
}

func TestFolderComesLater(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "later")
	path := filepath.Join(folder, "events.ndjson")
	s := open(t, path)
	outage(t, s.Send(t.Context(), batch(1, 1)))
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	send(t, s, batch(1, 1))
	expect(t, "ids", ids(t, path), "1")
}

func TestHeadersThatAreNotJSONRefuseTheirEvent(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.ndjson")
	b := batch(1, 3)
	b.Events[1].Headers = outbox.Headers(`{"a": `)
	var refused *sink.BatchError
	if err := open(t, path).Send(t.Context(), b); !errors.As(err, &refused) {
		t.Fatalf("got %v, want a *sink.BatchError", err)
	}
	if len(refused.Events) != 1 || refused.Events[0].Index != 1 || !errors.Is(refused.Events[0].Err, sink.ErrPermanent) {
		t.Fatalf("got %+v, want event 1 refused for good", refused.Events)
	}
	expect(t, "ids", ids(t, path), "1 3")
}

// TestWaitingForATurnEndsWithTheContext: one Send hangs in a pipe nobody reads.
func TestWaitingForATurnEndsWithTheContext(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	s := stdout(t, w)
	first := make(chan error)
	go func() { first <- s.Send(context.Background(), batch(1, 1)) }()
	var began [1]byte
	if _, err := io.ReadFull(r, began[:]); err != nil { // the first is at it
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := s.Send(ctx, batch(2, 2))
	outage(t, err)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want one that wraps context.DeadlineExceeded", err)
	}
	go func() { _, err := io.Copy(io.Discard, r); first <- err }()
	if err := <-first; err != nil {
		t.Errorf("Send: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if err := <-first; err != nil {
		t.Errorf("reading: %v", err)
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"":                       "file:///absolute/path was expected",
		"stdout:x":               "stdout: or file:///absolute/path",
		"file:":                  "file:///absolute/path was expected",
		"file://":                "file:///absolute/path was expected",
		"file:relative":          "file:///absolute/path was expected",
		"file://host/path":       "file:///absolute/path was expected",
		"file://u:secret@/path":  "file:///absolute/path was expected",
		"file:///folder/":        "this is a folder",
		"file:///a?b":            "no ? and no #",
		"file:///a#b":            "no ? and no #",
		"file:///a/{topic}":      "takes no placeholders",
		"file:///a%":             "invalid URL escape",
		"redis://localhost":      "file:///absolute/path was expected",
		"file:///a/\x00\n{key}x": "invalid control character",
	} {
		_, err := filesink.New(filesink.Config{URL: url}, os.Stdout)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("New(%q): got %v, want an error that says %q", url, err, want)
		}
	}
	if _, err := filesink.New(filesink.Config{URL: "stdout:"}, nil); err == nil {
		t.Error("New(stdout:) without an output: no error")
	}
}

func TestFileIsReadableByAll(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.ndjson")
	if err := open(t, path).Check(t.Context()); err != nil {
		t.Fatalf("Check: %v", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm() &^ 0o644; got != 0 || info.Mode().Perm()&0o600 != 0o600 {
		t.Errorf("mode %v, want 0644 less the umask", info.Mode())
	}
}
