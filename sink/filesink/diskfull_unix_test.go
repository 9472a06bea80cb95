//go:build unix

package filesink_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/filesink"
)

const childEnv = "FILESINK_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := diskFull(os.Args[len(os.Args)-2], os.Args[len(os.Args)-1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testserver.Main(m)
}

// runAgain runs this program again as a child and returns what it printed.
func runAgain(t *testing.T, args ...string) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), program, args...)
	c.Env = append(os.Environ(), childEnv+"=1")
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("child: %v", err)
	}
	return string(out)
}

// TestDiskFull runs in a process of its own that may not write large files, which
// is how a full disk looks from inside: a part is written, then no more.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.ndjson")
	send(t, open(t, path), batch(1, 3))
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	limit := len(before) + len(before)/2
	out := runAgain(t, path, strconv.Itoa(limit))
	expect(t, "what Send answered", out, "outage outage ok")
	expect(t, "ids in the file", ids(t, path), "1 2 3 4")
}

// diskFull is the child of TestDiskFull: of three sends the last has room.
func diskFull(path, limit string) error {
	most, err := strconv.ParseUint(limit, 10, 64)
	if err != nil {
		return err
	}
	if err := limitFileSize(most); err != nil {
		return err
	}
	s, err := filesink.New(filesink.Config{URL: "file://" + path}, nil)
	if err != nil {
		return err
	}
	var said []string
	for _, b := range []*buffer.Batch{batch(4, 6), batch(4, 6), batch(4, 4)} {
		switch err := s.Send(context.Background(), b); {
		case err == nil:
			said = append(said, "ok")
		case errors.Is(err, sink.ErrUnavailable) && errors.Is(err, syscall.EFBIG):
			said = append(said, "outage")
		default:
			said = append(said, err.Error())
		}
	}
	_, err = fmt.Print(strings.Join(said, " "))
	return errors.Join(err, s.Close())
}

// limitFileSize makes writes beyond so many bytes fail in this process.
func limitFileSize(bytes uint64) error {
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: bytes, Max: bytes})
}
