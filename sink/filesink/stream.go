package filesink

import (
	"fmt"
	"io"
	"os"
)

// stream appends lines to what cannot be cut back, such as standard output.
type stream struct {
	w    io.Writer
	torn bool // what was written last ends within a line
}

func (s *stream) open() error {
	f, ok := s.w.(*os.File)
	if !ok {
		return nil
	}
	if _, err := f.Stat(); err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	return nil
}

func (s *stream) write(lines []byte) error {
	_, err := s.append(lines)
	return err
}

// append returns how many bytes were written when it fails, too.
func (s *stream) append(lines []byte) (n int, err error) {
	if s.torn {
		if n, err = s.w.Write([]byte{'\n'}); err != nil {
			return n, err
		}
		s.torn = false
	}
	m, err := s.w.Write(lines)
	if err != nil {
		s.torn = m > 0 && m <= len(lines) && lines[m-1] != '\n'
		return n + m, err
	}
	return n + m, s.sync()
}

// sync makes the output durable where it is a regular file; a pipe or a terminal
// has nothing to sync.
func (s *stream) sync() error {
	f, ok := s.w.(*os.File)
	if !ok {
		return nil
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	return f.Sync()
}

func (s *stream) close() error { return nil }
