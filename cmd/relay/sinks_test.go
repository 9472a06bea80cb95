package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testserver"
)

// api is an HTTP API that is away until the test says otherwise.
func api(t *testing.T) (url string, away *atomic.Bool) {
	t.Helper()
	away = new(atomic.Bool)
	away.Store(true)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, away
}

// TestStatus_Sinks: status and log name each sink. One of three is away, and takes its events when it is back.
func TestStatus_Sinks(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	redis := redisStream(t)
	url, away := api(t)
	path := write(t, fmt.Sprintf(`
log: {format: json}
admin: {listen: ""}
pipelines:
  - name: shop
    source: {url: %q}
    retry: {initial: 1h, max: 1h}
    sinks:
      - {name: stream, url: %q}
      - {name: crm, url: %q, match: [contacts]}
      - {name: mail, url: %q, match: [mail]}
`, db.url, redis.url, url, url+"/mail"))
	do(t, nil, "status", "-c", path).want(t, 0, `PIPELINE  PENDING  OLDEST  LEASED  WAITING  DELIVERED  DEAD  STATE
shop            0       -       0        0          0     0
  stream        0       -       0        0          0     0  idle
  crm           0       -       0        0          0     0  idle
  mail          0       -       0        0          0     0  idle
`, "")
	db.exec("INSERT INTO outbox_events (topic, payload) SELECT 'contacts', '{}' FROM generate_series(1, 3)")
	do(t, nil, "status", "-c", path).want(t, 0, "  *             3 ", "")
	r := start(t, nil, "run", "-c", path)
	testserver.Eventually(t, func() error {
		if n := db.count("SELECT count(*) FROM outbox_batches WHERE sink = 'crm' AND error IS NOT NULL"); n == 0 || db.count("SELECT count(*) FROM outbox_batches") > n {
			return fmt.Errorf("crm has not refused all yet")
		}
		return nil
	})
	status := do(t, nil, "status", "-c", path)
	for _, text := range []string{
		"shop            3", "  stream        0       -       0        0          0     0  idle\n", "  crm           3 ", "  retries in ", "\nshop/crm: 1 batch waits (3 events), due in ", "503",
	} {
		status.want(t, 0, text, "")
	}
	var report struct {
		Pipelines []struct {
			Pending int64
			Sinks   []struct {
				Name    string
				Pending int64
				Next    *float64 `json:"next_try_in_seconds"`
			}
		}
	}
	if err := json.Unmarshal([]byte(do(t, nil, "status", "-c", path, "--json").stdout), &report); err != nil {
		t.Fatal(err)
	}
	shop := report.Pipelines[0]
	if shop.Pending != 3 || len(shop.Sinks) != 3 || shop.Sinks[1].Pending != 3 || shop.Sinks[1].Next == nil || *shop.Sinks[1].Next <= 0 || shop.Sinks[0].Next != nil {
		t.Errorf("status: %+v", shop)
	}
	away.Store(false)
	do(t, nil, "retry", "-c", path, "--now").want(t, 0, "shop: 1 batch is due now\n", "")
	testserver.Eventually(t, func() error {
		if n := db.count("SELECT count(*) FROM outbox_events"); n > 0 {
			return fmt.Errorf("%d events are left", n)
		}
		return nil
	})
	r.signal(syscall.SIGTERM)
	r.exit()
	named := map[string]map[string]bool{}
	for line := range strings.Lines(r.stderr.String()) {
		var one struct{ Msg, Pipeline, Sink string }
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if one.Pipeline != "shop" && one.Pipeline != "" {
			t.Errorf("a line of another pipeline: %s", line)
		}
		if named[one.Msg] == nil {
			named[one.Msg] = map[string]bool{}
		}
		named[one.Msg][one.Sink] = true
	}
	every := map[string]bool{"stream": true, "crm": true, "mail": true}
	for message, want := range map[string]map[string]bool{
		"pipeline started": {"": true}, "sink started": every, "pipeline runs": every, "pipeline stopped": every, "delivery failed, will retry": {"crm": true},
	} {
		if diff := cmp.Diff(want, named[message]); diff != "" {
			t.Errorf("%q names the sinks %v, want %v", message, named[message], want)
		}
	}
}
