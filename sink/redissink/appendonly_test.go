package redissink_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/sink/redissink"
)

// A server that was killed while it wrote a batch leaves the transaction open in its
// append-only file, and what follows joins it. That can be seen, and BGREWRITEAOF mends
// it: without it the last line here finds a part of the batch twice.
func TestFileThatWasCutOffIsMended(t *testing.T) {
	t.Parallel()
	server, s, c := start(t, redissink.Config{})
	warns := func(want bool) {
		t.Helper()
		got := strings.Join(s.Warnings(t.Context()), "\n")
		if strings.Contains(got, "run BGREWRITEAOF") != want || !want && got != "" {
			t.Errorf("warnings are %q, want one of the append-only file: %v", got, want)
		}
	}
	dir := c.ConfigGet(t.Context(), "dir").Val()["dir"]
	warns(false)
	b := newBatch("orders", "orders", "orders")
	mustSend(t, s, b)
	must(t, server.Kill())
	files, err := filepath.Glob(filepath.Join(dir, "appendonlydir", "*.incr.aof"))
	must(t, err)
	if len(files) != 1 {
		t.Fatalf("the append-only files are %v, want one; Redis 7.0 or later?", files)
	}
	info, err := os.Stat(files[0])
	must(t, err)
	must(t, os.Truncate(files[0], info.Size()-40))

	must(t, server.Start(t.Context()))
	warns(true)
	if n := c.Exists(t.Context(), "orders").Val(); n != 0 {
		t.Fatal("a part of the batch is there: the file was cut off outside of the transaction")
	}
	testserver.Eventually(t, func() error { return send(t, s, b) })
	must(t, c.BgRewriteAOF(t.Context()).Err())
	testserver.Eventually(t, func() error {
		info, err := c.InfoMap(t.Context(), "persistence").Result()
		if file := info["Persistence"]; err == nil && (file["aof_rewrites"] == "0" || file["aof_rewrite_in_progress"] != "0") {
			err = fmt.Errorf("not rewritten yet: %v", file)
		}
		return err
	})
	warns(false)
	must(t, server.Kill())
	must(t, server.Start(t.Context()))
	warns(true)
	expectStream(t, c, "orders", ids(b)...)

	refuses := testserver.Redis(t, "--aof-load-truncated", "no")
	refusing := opened(t, redissink.Config{URL: refuses.URL})
	must(t, refuses.Stop())
	must(t, refuses.Start(t.Context()))
	if got := refusing.Warnings(t.Context()); len(got) > 0 {
		t.Errorf("one that does not start from a file that was cut off: %q", got)
	}
}
