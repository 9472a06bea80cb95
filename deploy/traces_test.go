package deploy_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// TestTraces: a real OpenTelemetry Collector takes the spans of a relay, by both protocols. The batch is linked to the trace of the event that brought
// one, which the API gets as well.
func TestTraces(t *testing.T) {
	t.Parallel()
	const (
		trace = "4bf92f3577b34da6a3ce929d0e0e4736"
		span  = "00f067aa0ba902b7"
	)
	collector := filepath.Join(t.TempDir(), "collector")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", "../tools/collector", "-o", collector, ".").CombinedOutput(); err != nil {
		t.Fatalf("building the collector: %v\n%s", err, out)
	}
	relay := buildRelay(t)
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(strings.Replace(protocol, "/", "_", 1), func(t *testing.T) {
			t.Parallel()
			endpoint, printed := startCollector(t, collector, protocol)
			parents := make(chan string, 1)
			api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					t.Error(err)
				}
				select {
				case parents <- r.Header.Get("Traceparent"):
				default:
				}
			}))
			t.Cleanup(api.Close)
			database := testserver.Postgres(t)
			config := filepath.Join(t.TempDir(), "relay.yaml")
			write(t, config, fmt.Sprintf(`
admin: {listen: "127.0.0.1:0"}
pipelines:
  - {name: orders, source: {url: %q}, sink: {url: %q}}
`, database, api.URL))
			if out, err := exec.CommandContext(t.Context(), relay, "migrate", "-c", config).CombinedOutput(); err != nil {
				t.Fatalf("relay migrate: %v\n%s", err, out)
			}
			background(t, "env", "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL="+protocol, "OTEL_BSP_SCHEDULE_DELAY=100", relay, "run", "-c", config)
			execute(t, database, `INSERT INTO outbox_events (topic, payload, headers) VALUES ('order.created', '{}', '{"traceparent": "00-`+trace+`-`+span+`-01"}')`)
			parent := regexp.MustCompile(`^00-([0-9a-f]{32})-([0-9a-f]{16})-01$`).FindStringSubmatch(<-parents)
			if parent == nil {
				t.Fatal("the API got no traceparent")
			}
			testkit.Eventually(t, func() error {
				spans := printed()
				sent := spanOf(spans, "send orders", parent[1])
				switch batch := spanOf(spans, "relay orders", parent[1]); {
				case sent == "":
					return fmt.Errorf("no span says %q in the trace that the API got, %s:\n%s", "send orders", parent[1], spans)
				case !strings.Contains(sent, "ID             : "+parent[2]):
					return fmt.Errorf("the API got the span %s; expected that of the send:\n%s", parent[2], sent)
				case !strings.Contains(batch, "Trace ID: "+trace) || !strings.Contains(batch, "ID: "+span):
					return fmt.Errorf("no link goes to the event's trace %s:\n%s", trace, batch)
				case spanOf(spans, "settle", parent[1]) == "":
					return errors.New("no span of the settle has arrived")
				case !strings.Contains(spans, "service.name: Str(relay)"):
					return fmt.Errorf("the resource is not the relay:\n%s", spans)
				}
				return nil
			})
		})
	}
}

// startCollector starts a collector that takes traces by one protocol, and returns its address, and what it has printed.
func startCollector(t *testing.T, binary, protocol string) (endpoint string, printed func() string) {
	t.Helper()
	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	endpoint = fmt.Sprintf("127.0.0.1:%d", port)
	folder := t.TempDir()
	log, config := filepath.Join(folder, "log"), filepath.Join(folder, "collector.yaml")
	write(t, config, fmt.Sprintf(`
receivers:
  otlp: {protocols: {%s: {endpoint: %q}}}
exporters:
  debug: {verbosity: detailed}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    traces: {receivers: [otlp], exporters: [debug]}
`, strings.TrimSuffix(protocol, "/protobuf"), endpoint))
	background(t, "sh", "-c", `exec "$0" "$1" > "$2" 2>&1`, binary, config, log)
	printed = func() string {
		out, err := os.ReadFile(log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
		return string(out)
	}
	testkit.Eventually(t, func() error {
		if out := printed(); !strings.Contains(out, "Everything is ready") {
			return fmt.Errorf("the collector is not ready: %s", out)
		}
		return nil
	})
	return endpoint, printed
}

// spanOf returns what the collector printed of a span with that name in a trace; "" if there is none.
func spanOf(printed, name, trace string) string {
	for one := range strings.SplitSeq(printed, "\nSpan #") {
		if strings.Contains(one, "Trace ID       : "+trace) && strings.Contains(one, "Name           : "+name+"\n") {
			return one
		}
	}
	return ""
}

// execute runs a statement.
func execute(t *testing.T, database, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), sql)
	if err = errors.Join(err, conn.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
}
