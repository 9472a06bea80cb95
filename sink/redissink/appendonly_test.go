package redissink_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/sink/redissink"
)

// A server that was killed while it wrote a batch leaves the transaction open in its
// append-only file, and later commands join it. The sink warns, and BGREWRITEAOF fixes it:
// without it the last check here finds part of the batch twice.
func TestWarnings_TruncatedAppendOnlyFile(t *testing.T) {
	t.Parallel()
	server, s, c := start(t, redissink.Config{})
	expectWarning := func(want bool) {
		t.Helper()
		got := strings.Join(s.Warnings(t.Context()), "\n")
		if strings.Contains(got, "run BGREWRITEAOF") != want || !want && got != "" {
			t.Errorf("warnings are %q; want one about the append-only file: %v", got, want)
		}
	}
	dir := c.ConfigGet(t.Context(), "dir").Val()["dir"]
	expectWarning(false)
	b := newBatch("orders", "orders", "orders")
	mustSend(t, s, b)
	testkit.NoError(t, server.Kill())
	files, err := filepath.Glob(filepath.Join(dir, "appendonlydir", "*.incr.aof"))
	testkit.NoError(t, err)
	if len(files) != 1 {
		t.Fatalf("the append-only files are %v, want one; Redis 7.0 or later?", files)
	}
	info, err := os.Stat(files[0])
	testkit.NoError(t, err)
	testkit.NoError(t, os.Truncate(files[0], info.Size()-40))

	testkit.NoError(t, server.Start(t.Context()))
	expectWarning(true)
	if n := c.Exists(t.Context(), "orders").Val(); n != 0 {
		t.Fatal("part of the batch is present: the file was truncated outside of the transaction")
	}
	testkit.Eventually(t, func() error { return send(t, s, b) })
	testkit.NoError(t, c.BgRewriteAOF(t.Context()).Err())
	testkit.Eventually(t, func() error {
		info, err := c.InfoMap(t.Context(), "persistence").Result()
		if file := info["Persistence"]; err == nil && (file["aof_rewrites"] == "0" || file["aof_rewrite_in_progress"] != "0") {
			err = fmt.Errorf("not rewritten yet: %v", file)
		}
		return err
	})
	expectWarning(false)
	testkit.NoError(t, server.Kill())
	testkit.NoError(t, server.Start(t.Context()))
	expectWarning(true)
	expectStream(t, c, "orders", ids(b)...)

	strict := testserver.Redis(t, "--aof-load-truncated", "no")
	strictSink := opened(t, redissink.Config{URL: strict.URL})
	testkit.NoError(t, strict.Stop())
	testkit.NoError(t, strict.Start(t.Context()))
	if got := strictSink.Warnings(t.Context()); len(got) > 0 {
		t.Errorf("warnings are %q; want none for a server that does not start from a truncated file", got)
	}
}
