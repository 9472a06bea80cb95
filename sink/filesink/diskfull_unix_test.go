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

	"github.com/outboxrelay/relay/internal/testkit"
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

// runChild runs this program as a child and returns its output.
func runChild(t *testing.T, args ...string) string {
	t.Helper()
	program, err := os.Executable()
	testkit.NoError(t, err)
	c := exec.CommandContext(t.Context(), program, args...)
	c.Env = append(os.Environ(), childEnv+"=1")
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("child: %v", err)
	}
	return string(out)
}

// A child process with a limit on its files' size sees what a full disk looks like: a part
// is written, then no more.
func TestSend_DiskFull(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.ndjson")
	send(t, open(t, path), batch(1, 3))
	before, err := os.ReadFile(path)
	testkit.NoError(t, err)
	limit := len(before) + len(before)/2
	out := runChild(t, path, strconv.Itoa(limit))
	testkit.Equal(t, "results of the child", out, "outage outage ok")
	testkit.Equal(t, "ids in the file", ids(t, path), "1 2 3 4")
}

// diskFull is the child of TestSend_DiskFull. Only the last of its three batches fits.
func diskFull(path, limit string) error {
	maxSize, err := strconv.ParseUint(limit, 10, 64)
	if err != nil {
		return err
	}
	if err := limitFileSize(maxSize); err != nil {
		return err
	}
	s, err := filesink.New(filesink.Config{URL: "file://" + path}, nil)
	if err != nil {
		return err
	}
	var results []string
	for _, b := range []*buffer.Batch{batch(4, 6), batch(4, 6), batch(4, 4)} {
		switch err := s.Send(context.Background(), b); {
		case err == nil:
			results = append(results, "ok")
		case errors.Is(err, sink.ErrUnavailable) && errors.Is(err, syscall.EFBIG):
			results = append(results, "outage")
		default:
			results = append(results, err.Error())
		}
	}
	_, err = fmt.Print(strings.Join(results, " "))
	return errors.Join(err, s.Close())
}

// limitFileSize limits the size of the files that this process may write.
func limitFileSize(bytes uint64) error {
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: bytes, Max: bytes})
}
