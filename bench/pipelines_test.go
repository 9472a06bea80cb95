package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// BenchmarkPipelines runs the command with 1, 10 and 100 pipelines that have nothing to do, each with a table of its own in
// one database. It reports what the database and the process pay: statements a second as pg_stat_statements counts them,
// connections, memory, and CPU time. The memory of the connections' backends is what they do not share and their part of
// what they do.
func BenchmarkPipelines(b *testing.B) {
	db := newDatabase(b, map[string]string{"shared_preload_libraries": "pg_stat_statements", "max_connections": "1000"})
	relay := build(b, db)
	db.exec(b, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
	lasting := scaledTime(20 * time.Second)
	for b.Loop() {
		t := table{head: []string{"idle pipelines", "statements/s", "PostgreSQL % of a core", "own %", "own MB", "connections", "at the start", "backends MB"}}
		for _, wake := range []string{"notify", "poll"} {
			for _, n := range []int{1, 10, 100} {
				if !wanted(fmt.Sprintf("%d-%s", n, wake)) {
					continue
				}
				path := relay.configureMany(b, n, wake)
				relay.migrateAll(b, path)
				idle := relay.idleOf(b, path, lasting)
				t.add(fmt.Sprintf("%d, wake: %s", n, wake), idle.statements, idle.postgres, idle.own, idle.memory, idle.connections, idle.most, idle.backends)
				b.ReportMetric(idle.statements, fmt.Sprintf("%d-%s-statements/s", n, wake))
				b.ReportMetric(idle.memory, fmt.Sprintf("%d-%s-MB", n, wake))
			}
		}
		b.Logf("%v each\n%s", lasting, t)
	}
	b.ReportMetric(0, "ns/op")
}

// configureMany returns the configuration of n pipelines.
func (c command) configureMany(b *testing.B, n int, wake string) (path string) {
	b.Helper()
	redis := testserver.Redis(b, "--appendonly", "no").URL
	var yaml strings.Builder
	yaml.WriteString("admin: {listen: \"\"}\nlog: {level: error}\npipelines:\n")
	for i := range n {
		fmt.Fprintf(&yaml, "- {name: p%[1]d, source: {url: %[2]q, table: %[3]s_events_%[1]d}, wake: %[3]s, sink: {url: %[4]q}}\n", i, c.db.url, wake, redis)
	}
	path = filepath.Join(b.TempDir(), "relay.yaml")
	testkit.NoError(b, os.WriteFile(path, []byte(yaml.String()), 0o600))
	return path
}

// idling is what a process and its database use while there is nothing to do.
type idling struct {
	statements    float64 // a second
	postgres, own float64 // % of a core
	memory        float64 // resident, in MB
	connections   int
	most          int     // connections at its start
	backends      float64 // MB
}

func (c command) idleOf(b *testing.B, path string, lasting time.Duration) (i idling) {
	b.Helper()
	const connectionsSQL = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'relay'"
	pid, stop := c.start(b, path)
	for range 25 { // what it does at start is not its idling
		pause(b, 200*time.Millisecond)
		i.most = max(i.most, queryValue[int](b, c.db, connectionsSQL))
	}
	statements, server, own := c.db.statements(b), familyTime(b, c.db.pid), cpuTime(b, pid)
	pause(b, lasting)
	i.statements = (c.db.statements(b) - statements - 1) / lasting.Seconds() // ours is one of them
	i.postgres = 100 * (familyTime(b, c.db.pid) - server).Seconds() / lasting.Seconds()
	i.own = 100 * (cpuTime(b, pid) - own).Seconds() / lasting.Seconds()
	i.memory = residentMemory(b, pid)
	i.connections = queryValue[int](b, c.db, connectionsSQL)
	rows, err := c.db.pool.Query(b.Context(), "SELECT pid FROM pg_stat_activity WHERE application_name = 'relay'")
	testkit.NoError(b, err)
	for rows.Next() {
		var backend int
		testkit.NoError(b, rows.Scan(&backend))
		i.backends += proportionalMemory(b, backend)
	}
	testkit.NoError(b, rows.Err())
	stop()
	return i
}
