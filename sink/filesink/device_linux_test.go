package filesink_test

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"
)

func TestFullDevice(t *testing.T) {
	t.Parallel()
	s := open(t, "/dev/full")
	err := s.Send(t.Context(), batch(1, 2))
	outage(t, err)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v, want one that wraps ENOSPC", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestNamedPipe: without a reader there is an error at once, not a long wait.
func TestNamedPipe(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, path)
	outage(t, s.Send(t.Context(), batch(1, 1)))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
