package config

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
)

// TestReadFile_Pipe has a pipe that nobody writes to, one that nobody closes, and one with a secret.
func TestReadFile_Pipe(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pipe")
	testkit.NoError(t, syscall.Mkfifo(path, 0o600))
	if _, err := readWithin(path, time.Millisecond); !errors.Is(err, errTooSlow) {
		t.Errorf("no writer: got %v", err)
	}
	w, err := os.OpenFile(path, os.O_WRONLY, 0) // the reader that was left behind has opened it
	testkit.NoError(t, err)
	if _, err := readWithin(path, time.Millisecond); !errors.Is(err, errTooSlow) {
		t.Errorf("a writer that does not end: got %v", err)
	}
	testkit.NoError(t, w.Close()) // ends both readers

	r, w, err := os.Pipe()
	testkit.NoError(t, err)
	defer r.Close()
	_, err = w.WriteString("s3cret\n")
	testkit.NoError(t, err)
	testkit.NoError(t, w.Close())
	if text, err := readWithin(filepath.Join("/dev/fd", strconv.Itoa(int(r.Fd()))), time.Minute); err != nil || string(text) != "s3cret\n" {
		t.Errorf("a pipe with a secret: got %q, %v", text, err)
	}
}
