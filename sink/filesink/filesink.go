// Package filesink writes events as NDJSON, one JSON envelope a line, to a file or
// to standard output.
//
// # Durability
//
// A batch counts as delivered when it was written and, where the output is a
// regular file, synced to disk. A batch of which only a part could be written (a
// full disk) is an outage, and the file is cut back to where the batch began, so
// that no half line stays behind. Where that is not possible (a pipe, or the
// process was killed), the half line is ended before the next batch is written.
//
// # Rotation
//
// Before each batch the sink looks whether the path still leads to the file it
// has open, and opens it anew if not: moving the file away is all that a log
// rotation has to do. Rotation by copying and truncating works as well, since
// the file is open for appending, but loses what is written in between.
//
// Several processes may append to one file, but the half line one of them writes
// to a full disk can spoil a line of another's.
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

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Config says where to write.
type Config struct {
	// URL is "stdout:" or "file:///absolute/path". Required.
	URL string
}

// Sink writes events to a file or to standard output. It is safe for concurrent
// use: one batch is written at a time.
type Sink struct {
	out  output
	name string // where it leads, for people to read
	// turn holds one token; who has it writes. A mutex would not let go of those
	// whose context is over.
	turn    chan struct{}
	buffers sync.Pool // of *[]byte
}

// output is where lines go. Its methods are called by one goroutine at a time.
type output interface {
	// open makes sure that lines can be written.
	open() error
	// write writes all of the lines durably, or none as far as that can be had.
	write(lines []byte) error
	close() error
}

// New makes a sink; it opens nothing yet. stdout is where "stdout:" writes to, and
// stays the caller's. Who hands in os.Stdout ignores SIGPIPE (signal.Ignore):
// otherwise Go ends the process when the reader goes away, where Send would
// report an outage.
func New(c Config, stdout io.Writer) (*Sink, error) {
	out, err := c.output(stdout)
	if err != nil {
		return nil, fmt.Errorf("file sink: %w", err)
	}
	s := &Sink{out: out, name: "standard output", turn: make(chan struct{}, 1)}
	if f, ok := out.(*file); ok {
		s.name = f.path
	}
	s.buffers.New = func() any { return new([]byte) }
	s.turn <- struct{}{}
	return s, nil
}

func (c Config) output(stdout io.Writer) (output, error) {
	if c.URL == "stdout:" {
		if stdout == nil {
			return nil, errors.New("url stdout: has no output to go to")
		}
		return &stream{w: stdout}, nil
	}
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, err // names no secret: neither scheme has any
	}
	switch {
	case u.Scheme != "file" || u.Opaque != "" || u.Host != "" || u.User != nil || !filepath.IsAbs(u.Path):
		return nil, fmt.Errorf("url %q: stdout: or file:///absolute/path was expected", u.Redacted())
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("url %q: a path has no ? and no # (write %%3F, %%23)", c.URL)
	case strings.HasSuffix(u.Path, "/"):
		return nil, fmt.Errorf("url %q: a file was expected, this is a folder", c.URL)
	case strings.Contains(u.Path, "{topic}") || strings.Contains(u.Path, "{key}"):
		return nil, fmt.Errorf("url %q: a file takes no placeholders", c.URL)
	}
	return &file{path: u.Path}, nil
}

// Send appends the batch's events. Its error wraps sink.ErrUnavailable, or is a
// *sink.BatchError that names events which no envelope can carry. A write that
// the operating system holds up (a pipe nobody reads) is not ended by ctx.
func (s *Sink) Send(ctx context.Context, b *buffer.Batch) error {
	buffer := s.buffers.Get().(*[]byte)
	defer s.buffers.Put(buffer)
	lines, refused := appendLines((*buffer)[:0], b)
	*buffer = lines
	if err := s.exclusively(ctx, func() error { return s.out.write(lines) }); err != nil {
		return fmt.Errorf("writing %d events: %w", len(b.Events), sink.Unavailable(err))
	}
	if len(refused) > 0 {
		return &sink.BatchError{Events: refused}
	}
	return nil
}

// Check opens the file, and creates it if need be. The error wraps
// sink.ErrUnavailable.
func (s *Sink) Check(ctx context.Context) error {
	if err := s.exclusively(ctx, s.out.open); err != nil {
		return sink.Unavailable(err)
	}
	return nil
}

// Close closes the file; standard output stays open.
func (s *Sink) Close() error { return s.out.close() }

// exclusively runs act when it is its turn, unless ctx is over first.
func (s *Sink) exclusively(ctx context.Context, act func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.turn:
	}
	defer func() { s.turn <- struct{}{} }()
	return act()
}
