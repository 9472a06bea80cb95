package bench

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
)

// BenchmarkRate runs the command for a minute against a server that answers at once,
// with a rate of 10 requests a second: one process with four workers, and three
// processes that share the rate. It reports the deviation from the rate, and the most
// requests within any second.
func BenchmarkRate(b *testing.B) {
	db := newDatabase(b)
	relay := build(b, db)
	b.Run("Alone", func(b *testing.B) { relay.atARate(b, 1, "") })
	b.Run("Shared", func(b *testing.B) { relay.atARate(b, 3, ", shared: true") })
}

// begun records when requests arrived.
type begun struct {
	mu sync.Mutex
	at []time.Time
}

func (r *begun) ServeHTTP(http.ResponseWriter, *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = append(r.at, time.Now())
}

func (c command) atARate(b *testing.B, processes int, shared string) {
	const perSecond = 10
	lasting := scaledTime(time.Minute)
	var came []time.Time
	for b.Loop() {
		to := &begun{}
		server := httptest.NewServer(to)
		c.db.fill(b, eventsTable, batchSize)
		path := filepath.Join(b.TempDir(), "relay.yaml")
		testkit.NoError(b, os.WriteFile(path, fmt.Appendf(nil, `admin: {listen: ""}
log: {level: error}
pipelines:
- name: orders
  source: {url: %q}
  batch_size: 1
  workers: 4
  sink: {url: %q, rate: {requests: %d, per: 1s%s}}
`, c.db.url, server.URL, perSecond, shared), 0o600))
		var all []*exec.Cmd
		for range processes {
			cmd := exec.CommandContext(context.WithoutCancel(b.Context()), c.binary, "run", "-c", path)
			cmd.Stderr = os.Stderr
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			testkit.NoError(b, cmd.Start())
			all = append(all, cmd)
		}
		pause(b, lasting)
		for _, cmd := range all {
			testkit.NoError(b, cmd.Process.Signal(syscall.SIGTERM))
		}
		for _, cmd := range all {
			testkit.NoError(b, cmd.Wait())
		}
		server.Close()
		came = to.at
		if sent := batchSize - queryValue[int](b, c.db, "SELECT count(*) FROM "+eventsTable); sent != len(came) {
			b.Errorf("%d requests for %d events", len(came), sent)
		}
	}
	if len(came) < 2 {
		b.Fatalf("%d requests came", len(came))
	}
	first, most := 0, 0
	for i := range came {
		for came[i].Sub(came[first]) >= time.Second {
			first++
		}
		most = max(most, i-first+1)
	}
	rate := float64(len(came)-1) / came[len(came)-1].Sub(came[0]).Seconds()
	b.ReportMetric(100*(rate/perSecond-1), "%off")
	b.ReportMetric(float64(most), "most/s")
	b.ReportMetric(float64(len(came)), "requests")
	b.ReportMetric(0, "ns/op")
}
