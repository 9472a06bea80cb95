package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// A relay with all defaults takes less memory than the limits that the examples set, however large the backlog is.
func TestRun_Memory(t *testing.T) {
	t.Parallel()
	const (
		events = 1500
		size   = 200_000
		most   = 256 << 20
	)
	for name, open := range map[string]func(t *testing.T) (url, more string){
		"http": func(t *testing.T) (string, string) {
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					t.Error(err)
				}
			}))
			t.Cleanup(server.Close)
			return server.URL, ""
		},
		"redis": func(t *testing.T) (string, string) { return testserver.SharedRedis(t), ", maxlen: 10" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.exec(fmt.Sprintf(`INSERT INTO outbox_events (topic, payload)
				SELECT 'orders', json_build_object('n', n, 'text', repeat('x', %d)) FROM generate_series(1, %d) n`, size, events))
			url, more := open(t)
			r := start(t, nil, "run", "-c", write(t, strings.Replace(onePipeline("orders", db.url, url), url+`"`, url+`"`+more, 1)))
			testserver.Eventually(t, func() error {
				if n := db.count(rowsLeft); n != 0 {
					return fmt.Errorf("%d rows are left", n)
				}
				return nil
			})
			if peak := r.peakMemory(); peak > most {
				t.Errorf("%d events of %d bytes took %d MiB of memory; want %d at most", events, size, peak>>20, most>>20)
			}
		})
	}
}

// peakMemory returns how many bytes the process had in memory at the most.
func (r *relay) peakMemory() int {
	r.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	if err != nil {
		r.t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	fields := strings.Fields(after)
	if len(fields) == 0 {
		r.t.Fatal("/proc has no VmHWM")
	}
	kb, err := strconv.Atoi(fields[0])
	if err != nil {
		r.t.Fatal(err)
	}
	return kb << 10
}
