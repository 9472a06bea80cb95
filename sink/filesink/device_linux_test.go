package filesink_test

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
)

func TestSend_FullDevice(t *testing.T) {
	t.Parallel()
	s := open(t, "/dev/full")
	err := s.Send(t.Context(), batch(1, 2))
	outage(t, err)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v, want one that wraps ENOSPC", err)
	}
	testkit.NoError(t, s.Close())
}

func TestSend_PipeWithoutReader(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pipe")
	testkit.NoError(t, syscall.Mkfifo(path, 0o600))
	s := open(t, path)
	outage(t, s.Send(t.Context(), batch(1, 1)))
	testkit.NoError(t, s.Close())
}
