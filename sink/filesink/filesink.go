// Package filesink writes events as NDJSON, one JSON envelope a line, to a file or to standard output.
//
// # Durability
//
// A batch counts as delivered when it was written and, if the output is a regular file, synced to disk. If
// only part of a batch could be written (a full disk), that is an outage: the sink truncates the file to its
// length before the batch. If the sink cannot truncate (a pipe, a killed process), it ends the partial line
// before the next batch.
//
// # Privacy
//
// The sink creates files with mode 0600, and keeps the mode of a file that exists; [Sink.Warnings] names one that
// others may write to. It does not follow a symbolic link at the path, and opens no file that has other names
// (hard links). Links among the directories above are the operator's.
//
// # Rotation
//
// Before each batch the sink checks whether the path still names the open file, and otherwise opens it again.
// So a log rotation only has to rename the file. Rotation by copy and truncate works too, but loses the
// events that are written between the two steps.
//
// Several processes may append to one file. If the disk is full, a partial line of one process can corrupt a
// line of another.
package filesink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Config is the configuration of a Sink.
type Config struct {
	// URL is "stdout:" or "file:///absolute/path". Required.
	URL string
}

// Sink writes events to a file or to standard output. It is safe for concurrent use, and writes one batch at
// a time.
type Sink struct {
	out  output
	name string // of the output, for people
	// writing is of one. Unlike a mutex, waiting for it ends with the context.
	writing *semaphore.Weighted
	buffers sync.Pool // of *[]byte
}

// output is a destination of lines. One goroutine at a time calls its methods.
type output interface {
	// open prepares the output for writing.
	open() error
	// write writes all lines durably, or none if the output can be truncated.
	write(lines []byte) error
	close() error
}

// New returns a sink. It does not open the file yet. "stdout:" writes to stdout, which the caller owns. With
// os.Stdout the caller must ignore SIGPIPE (signal.Ignore): otherwise Go ends the process when the reader
// closes the pipe, and Send cannot report an outage.
func New(c Config, stdout io.Writer) (*Sink, error) {
	out, err := c.output(stdout)
	if err != nil {
		return nil, fmt.Errorf("file sink: %w", err)
	}
	s := &Sink{out: out, name: "standard output", writing: semaphore.NewWeighted(1)}
	if f, ok := out.(*file); ok {
		s.name = f.path
	}
	s.buffers.New = func() any { return new([]byte) }
	return s, nil
}

func (c Config) output(stdout io.Writer) (output, error) {
	if c.URL == "stdout:" {
		if stdout == nil {
			return nil, errors.New("url is stdout:, but New got no output")
		}
		return &stream{w: stdout}, nil
	}
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, err // quotes the URL, which has no secrets
	}
	switch {
	case u.Scheme != "file" || u.Opaque != "" || u.Host != "" || u.User != nil || !filepath.IsAbs(u.Path):
		return nil, fmt.Errorf("url is %q; expected stdout: or file:///absolute/path", u.Redacted())
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("url is %q; expected no ? and no # (write %%3F and %%23)", c.URL)
	case strings.HasSuffix(u.Path, "/"):
		return nil, fmt.Errorf("url is %q; expected a file, not a directory", c.URL)
	case strings.Contains(u.Path, "{topic}") || strings.Contains(u.Path, "{key}"):
		return nil, fmt.Errorf("url is %q; expected no placeholders", c.URL)
	}
	return &file{path: u.Path}, nil
}

// Send appends the batch's events. The error wraps sink.ErrUnavailable, or is a *sink.BatchError of events
// that an envelope cannot carry. ctx does not end a write that blocks in the operating system (a pipe without
// a reader).
func (s *Sink) Send(ctx context.Context, b *buffer.Batch) error {
	buffer := s.buffers.Get().(*[]byte)
	defer s.buffers.Put(buffer)
	lines, _, rejected := appendLines((*buffer)[:0], b)
	*buffer = lines
	if err := s.exclusively(ctx, func() error { return s.out.write(lines) }); err != nil {
		return fmt.Errorf("writing a batch: %w", sink.Unavailable(err))
	}
	return sink.NewBatchError(rejected)
}

// Check opens the file, and creates it if it does not exist. The error wraps sink.ErrUnavailable.
func (s *Sink) Check(ctx context.Context) error {
	if err := s.exclusively(ctx, s.out.open); err != nil {
		return sink.Unavailable(err)
	}
	return nil
}

// Warnings implements sink.Warner.
func (s *Sink) Warnings(context.Context) []string {
	if f, ok := s.out.(*file); ok {
		if text := f.warning(); text != "" {
			return []string{text}
		}
	}
	return nil
}

// Close closes the file; standard output stays open.
func (s *Sink) Close() error { return s.out.close() }

// exclusively runs act while nothing else writes, unless ctx ends first.
func (s *Sink) exclusively(ctx context.Context, act func() error) error {
	if err := s.writing.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.writing.Release(1)
	return act()
}
