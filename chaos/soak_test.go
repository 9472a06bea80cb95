//go:build unix

package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

var (
	soakFor = flag.Duration("soak.for", 10*time.Second, "how long TestSoak runs")
	soakCSV = flag.String("soak.csv", "", `file for what TestSoak measured, with a chart beside it (.svg); "": none`)
)

// soakYAML has two sinks, so that events are routed, and is complete with a port and three URLs.
const soakYAML = `admin: {listen: "127.0.0.1:%d"}
pipelines:
  - name: shop
    source: {url: %q}
    batch_size: 100
    retry: {initial: 100ms, max: 1s}
    sinks:
      - {name: log, url: %q, stream: soak, maxlen: 10000}
      - {name: crm, url: %q, timeout: 1s}
`

// soakMetrics are what must not grow. The slack is what a value may have above one and a half times of what it had before.
var soakMetrics = []struct {
	name  string
	slack float64
}{
	{"go_goroutines", 10},
	{"process_open_fds", 10},
	{"process_resident_memory_bytes", 32 << 20},
	{"go_memstats_heap_inuse_bytes", 32 << 20},
	{"connections", 2},
	{"ledger_bytes", 4 << 20},
	{"events_bytes", 16 << 20},
}

// TestSoak runs one relay for long, with outages of both sinks, and compares what it takes in the last quarter with what
// it took in the second.
func TestSoak(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "relay")
	testkit.NoError(t, command(t.Context(), "go", "build", "-o", program, "../cmd/relay"))
	x := &trial{T: t, program: program, dir: t.TempDir()}
	var outage atomic.Bool
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil || outage.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(api.Close)
	server := testserver.Redis(t)
	from := x.postgres(testserver.Postgres(t))
	port, err := testserver.FreePort()
	testkit.NoError(t, err)
	p := x.start("soak", fmt.Sprintf(soakYAML, port, from.url, server.URL, api.URL))

	testkit.Eventually(t, func() error {
		_, err := metricsAt(t.Context(), port)
		return err
	})
	var (
		samples [][]float64
		began   = time.Now()
		every   = max(time.Second, *soakFor/200)
		next    = began
		events  int
	)
	for rounds := 0; time.Since(began) < *soakFor; rounds++ {
		_, err := from.db.ExecContext(t.Context(), `INSERT INTO outbox_events (topic, payload) SELECT 'orders', '{"a": 1}' FROM generate_series(1, 50)`)
		testkit.NoError(t, err)
		events += 50
		outage.Store(rounds%100 >= 80) // a fifth of the time
		if rounds%600 == 599 {
			testkit.NoError(t, server.Kill())
			testkit.NoError(t, server.Start(t.Context()))
		}
		if !time.Now().Before(next) {
			samples = append(samples, x.measure(from, port))
			next = next.Add(every)
		}
		if !pause(t.Context(), 50*time.Millisecond) {
			t.Fatal("the test ended early")
		}
	}
	outage.Store(false)
	from.drained()
	x.end(p)
	t.Logf("%d events and %d samples in %v", events, len(samples), time.Since(began).Round(time.Second))
	testkit.NoError(t, writeSamples(samples, every))
	if len(samples) < 8 {
		t.Log("too few samples to compare: the machine is busy")
		return
	}
	for i, m := range soakMetrics {
		before, after := highest(samples, i, 1, 2), highest(samples, i, 3, 4)
		t.Logf("%-32s %14.0f in the second quarter, %14.0f in the last", m.name, before, after)
		if after > before*1.5+m.slack {
			t.Errorf("%s grew from %.0f to %.0f", m.name, before, after)
		}
	}
}

const soakSQL = `
SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'relay'),
       pg_total_relation_size('outbox_batches'), pg_total_relation_size('outbox_events')`

// measure returns the values of soakMetrics.
func (x *trial) measure(from *source, port int) []float64 {
	x.Helper()
	ctx, cancel := context.WithTimeout(x.Context(), 30*time.Second)
	defer cancel()
	text, err := metricsAt(ctx, port)
	testkit.NoError(x, err)
	var values []float64
	for _, m := range soakMetrics[:4] {
		found := regexp.MustCompile(`(?m)^` + m.name + ` (.*)$`).FindSubmatch(text)
		if found == nil {
			x.Fatalf("the relay has no metric %s", m.name)
		}
		value, err := strconv.ParseFloat(string(found[1]), 64)
		testkit.NoError(x, err)
		values = append(values, value)
	}
	database := make([]float64, 3)
	testkit.NoError(x, from.db.QueryRowContext(ctx, soakSQL).Scan(&database[0], &database[1], &database[2]))
	return append(values, database...)
}

// metricsAt reads the metrics of the relay at a port.
func metricsAt(ctx context.Context, port int) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", port), nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return io.ReadAll(answer.Body)
}

// highest is the highest value of a metric between two quarters.
func highest(samples [][]float64, metric, from, to int) float64 {
	var values []float64
	for _, s := range samples[len(samples)*from/4 : len(samples)*to/4] {
		values = append(values, s[metric])
	}
	return slices.Max(append(values, 0))
}

func writeSamples(samples [][]float64, every time.Duration) error {
	if *soakCSV == "" {
		return nil
	}
	var text strings.Builder
	text.WriteString("seconds")
	for _, m := range soakMetrics {
		text.WriteString("," + m.name)
	}
	for i, s := range samples {
		fmt.Fprintf(&text, "\n%.0f", every.Seconds()*float64(i))
		for _, v := range s {
			fmt.Fprintf(&text, ",%.0f", v)
		}
	}
	return errors.Join(os.WriteFile(*soakCSV, []byte(text.String()+"\n"), 0o600),
		os.WriteFile(strings.TrimSuffix(*soakCSV, ".csv")+".svg", []byte(soakChart(samples, every)), 0o600))
}
