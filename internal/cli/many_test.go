package cli

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// TestRun_ManyPipelines: pipelines on one database share their connections, and one without a table stops no other.
func TestRun_ManyPipelines(t *testing.T) {
	t.Parallel()
	const pipelines = 40
	db, url := newDatabase(t), testserver.SharedRedis(t)
	client := connect(t, url)
	configured := func(n int) string {
		var yaml strings.Builder
		yaml.WriteString("admin: {listen: ''}\npipelines:\n")
		for i := range n {
			fmt.Fprintf(&yaml, "  - {name: p%[1]d, source: {url: %[2]q, table: events_%[1]d}, sink: {url: %[3]q, stream: orders}}\n", i, db.url, url)
		}
		return write(t, yaml.String())
	}
	do(t, nil, "migrate", "-c", configured(pipelines)).want(t, 0, "p0: applied", "")
	r := start(t, nil, "run", "-c", configured(pipelines+1))
	for i := range pipelines {
		db.exec(fmt.Sprintf("INSERT INTO events_%d (topic, payload) VALUES ('orders', '{}')", i))
	}
	arrive(t, client, pipelines)
	r.waitForLog(fmt.Sprintf("pipeline=p%d", pipelines))
	r.waitForLog("to create it: relay migrate -c ")
	// 32 in the pool, and one that listens.
	const backendsSQL = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'relay'"
	if n := db.count(backendsSQL); n == 0 || n > 33 {
		t.Errorf("the pipelines have %d connections; want at most 33", n)
	}
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	testserver.Eventually(t, func() error {
		if db.count(backendsSQL) > 0 {
			return errors.New("connections are left")
		}
		return nil
	})
}
