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

	"github.com/outboxrelay/relay/internal/testkit"
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

// batch returns a batch of the events first to last.
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
		t.Fatalf("got %v; want an outage", err)
	}
}

// ids returns the ids in the file. It fails the test if a line is not an envelope.
func ids(t *testing.T, path string) string {
	t.Helper()
	var all []string
	for _, a := range arrivals(t, path) {
		all = append(all, a.ID)
	}
	return strings.Join(all, " ")
}

func TestSend_BrokenPipe(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	testkit.NoError(t, err)
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

// failingWriter fails once, after so many bytes.
type failingWriter struct {
	bytes.Buffer
	room int
}

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.room > 0 && w.room < len(p) {
		n, err := w.Buffer.Write(p[:w.room])
		w.room = 0
		return n, errors.Join(err, io.ErrShortWrite)
	}
	return w.Buffer.Write(p)
}

func TestPartialLine_Stdout(t *testing.T) {
	t.Parallel()
	w := &failingWriter{room: 20}
	s := stdout(t, w)
	outage(t, s.Send(t.Context(), batch(1, 1)))
	send(t, s, batch(1, 1))
	line := sink.AppendLine(nil, batch(1, 1), 0)
	testkit.Equal(t, "output", w.String(), string(line[:20])+"\n"+string(line))
}

func TestPartialLine_KilledProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.ndjson")
	testkit.NoError(t, os.WriteFile(path, []byte(`{"id":"1","to`), 0o600))
	s := open(t, path)
	send(t, s, batch(1, 1))
	send(t, s, batch(2, 2))
	got := lines(t, path)
	if len(got) != 3 {
		t.Fatalf("got %d lines; want the partial one and two: %q", len(got), got)
	}
	testkit.Equal(t, "partial line", string(got[0]), `{"id":"1","to`)
}

// TestPartialLine_OtherProcess: another process that writes to the file is killed within a line.
func TestPartialLine_OtherProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.ndjson")
	s := open(t, path)
	send(t, s, batch(1, 1))
	other, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	testkit.NoError(t, err)
	_, err = other.WriteString(`{"id":"9","to`)
	testkit.NoError(t, errors.Join(err, other.Close()))
	send(t, s, batch(2, 2))
	send(t, s, batch(3, 3))
	got := lines(t, path)
	if len(got) != 4 {
		t.Fatalf("got %d lines; want the partial one and three: %q", len(got), got)
	}
	testkit.Equal(t, "partial line", string(got[1]), `{"id":"9","to`)
}

func TestRotation(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	path := filepath.Join(folder, "events.ndjson")
	s := open(t, path)
	send(t, s, batch(1, 2))
	testkit.NoError(t, os.Rename(path, path+".1"))
	send(t, s, batch(3, 4))
	send(t, s, batch(5, 5))
	testkit.Equal(t, "ids in the old file", ids(t, path+".1"), "1 2")
	testkit.Equal(t, "ids in the new file", ids(t, path), "3 4 5")

	testkit.NoError(t, os.Rename(path, path+".2")) // and another file is created at once
	closeFile(t, create(t, path))
	send(t, s, batch(6, 6))
	testkit.Equal(t, "ids in the next file", ids(t, path), "6")

	testkit.NoError(t, os.Truncate(path, 0)) // logrotate's copytruncate
	send(t, s, batch(7, 7))
	testkit.Equal(t, "ids after truncation", ids(t, path), "7")
}

func TestSend_DirectoryCreatedLater(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "later")
	path := filepath.Join(folder, "events.ndjson")
	s := open(t, path)
	outage(t, s.Send(t.Context(), batch(1, 1)))
	testkit.NoError(t, os.Mkdir(folder, 0o700))
	send(t, s, batch(1, 1))
	testkit.Equal(t, "ids", ids(t, path), "1")
}

func TestSend_InvalidHeaders(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.ndjson")
	b := batch(1, 3)
	b.Events[1].Headers = outbox.Headers(`{"a": `)
	var rejected *sink.BatchError
	if err := open(t, path).Send(t.Context(), b); !errors.As(err, &rejected) {
		t.Fatalf("got %v, want a *sink.BatchError", err)
	}
	if len(rejected.Events) != 1 || rejected.Events[0].Index != 1 || !errors.Is(rejected.Events[0].Err, sink.ErrPermanent) {
		t.Fatalf("got %+v, want event 1 permanently rejected", rejected.Events)
	}
	testkit.Equal(t, "ids", ids(t, path), "1 3")
}

// The first Send blocks in a pipe without a reader.
func TestSend_WaitEndsWithContext(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	s := stdout(t, w)
	first := make(chan error)
	go func() { first <- s.Send(context.Background(), batch(1, 1)) }()
	var began [1]byte
	if _, err := io.ReadFull(r, began[:]); err != nil { // the first is writing
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
	testkit.NoError(t, w.Close())
	if err := <-first; err != nil {
		t.Errorf("reading: %v", err)
	}
}

func TestNew_InvalidURL(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"":                       "expected stdout: or file:///absolute/path",
		"stdout:x":               "expected stdout: or file:///absolute/path",
		"file:":                  "expected stdout: or file:///absolute/path",
		"file://":                "expected stdout: or file:///absolute/path",
		"file:relative":          "expected stdout: or file:///absolute/path",
		"file://host/path":       "expected stdout: or file:///absolute/path",
		"file://u:secret@/path":  "expected stdout: or file:///absolute/path",
		"file:///folder/":        "not a directory",
		"file:///a?b":            "expected no ? and no #",
		"file:///a#b":            "expected no ? and no #",
		"file:///a/{topic}":      "expected no placeholders",
		"file:///a%":             "invalid URL escape",
		"redis://localhost":      "expected stdout: or file:///absolute/path",
		"file:///a/\x00\n{key}x": "invalid control character",
	} {
		_, err := filesink.New(filesink.Config{URL: url}, os.Stdout)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("New(%q): got %v, want an error that contains %q", url, err, want)
		}
	}
	if _, err := filesink.New(filesink.Config{URL: "stdout:"}, nil); err == nil {
		t.Error("New(stdout:) without an output: no error")
	}
}

func TestCheck_FileMode(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.ndjson")
	if err := open(t, path).Check(t.Context()); err != nil {
		t.Fatalf("Check: %v", err)
	}
	info, err := os.Stat(path)
	testkit.NoError(t, err)
	if got := info.Mode().Perm() &^ 0o644; got != 0 || info.Mode().Perm()&0o600 != 0o600 {
		t.Errorf("mode is %v; want 0644 minus the umask", info.Mode())
	}
}
