package filesink

import (
	"fmt"
	"io"
	"os"
)

// stream appends lines to an output that cannot be truncated, such as standard output.
type stream struct {
	w       io.Writer
	partial bool // the last write ended within a line
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

// append returns how many bytes were written, even with an error.
func (s *stream) append(lines []byte) (n int, err error) {
	if s.partial {
		if n, err = s.w.Write([]byte{'\n'}); err != nil {
			return n, err
		}
		s.partial = false
	}
	m, err := s.w.Write(lines)
	if err != nil {
		s.partial = m > 0 && m <= len(lines) && lines[m-1] != '\n'
		return n + m, err
	}
	return n + m, s.sync()
}

// sync syncs a regular file. It does nothing for a pipe or a terminal.
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
