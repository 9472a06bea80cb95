package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

func TestPrometheusRules(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"check", "rules", "prometheus/relay.rules.yaml"}, {"test", "rules", "prometheus/relay.rules.test.yaml"}} {
		if out, err := testserver.Promtool(t, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	tested := read(t, "prometheus/relay.rules.test.yaml")
	for _, m := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(read(t, "prometheus/relay.rules.yaml"), -1) {
		if !strings.Contains(tested, "- alertname: "+m[1]+"\n") {
			t.Errorf("no test has the alert %s firing", m[1])
		}
	}
}

// Each alert links to its own section of the documentation, and the table of alerts has it.
func TestPrometheusRules_Runbooks(t *testing.T) {
	t.Parallel()
	_, sections, _ := strings.Cut(read(t, "../docs/troubleshooting.md"), "\n## By alert\n")
	sections, _, _ = strings.Cut(sections, "\n## ")
	_, table, _ := strings.Cut(read(t, "../docs/monitoring.md"), "\n## Alerts\n")
	rules := strings.Split(read(t, "prometheus/relay.rules.yaml"), "- alert: ")[1:]
	for _, rule := range rules {
		name, _, _ := strings.Cut(rule, "\n")
		if url := "runbook_url: https://github.com/outboxrelay/relay/blob/main/docs/troubleshooting.md#" + strings.ToLower(name) + "\n"; !strings.Contains(rule, url) {
			t.Errorf("the alert %s lacks %s", name, url)
		}
		if !strings.Contains(sections, "\n### "+name+"\n") {
			t.Errorf("docs/troubleshooting.md has no section %s below By alert", name)
		}
		if !strings.Contains(table, "`"+name+"`") {
			t.Errorf("the alerts of docs/monitoring.md lack %s", name)
		}
	}
	if headings := strings.Count(sections, "\n### "); len(rules) == 0 || headings != len(rules) {
		t.Errorf("there are %d alerts, and docs/troubleshooting.md has %d sections", len(rules), headings)
	}
}

// The prometheus.yml of the documentation loads.
func TestPrometheusConfig(t *testing.T) {
	t.Parallel()
	_, example, ok := strings.Cut(read(t, "../docs/monitoring.md"), "<!-- tested by deploy: TestPrometheusConfig -->\n```yaml\n")
	example, _, closed := strings.Cut(example, "```\n")
	if !ok || !closed {
		t.Fatal("docs/monitoring.md has no prometheus.yml")
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "prometheus.yml"), example)
	write(t, filepath.Join(dir, "relay.rules.yaml"), read(t, "prometheus/relay.rules.yaml"))
	if out, err := testserver.Promtool(t, "check", "config", filepath.Join(dir, "prometheus.yml")).CombinedOutput(); err != nil || !strings.Contains(string(out), "rules found") {
		t.Errorf("promtool check config: %v\n%s", err, out)
	}
}

// dashboard is the part of deploy/grafana/relay.json that the tests follow.
type dashboard struct {
	UID, Title string
	Templating struct {
		List []struct{ Name, Definition string }
	}
	Panels []struct {
		ID          int
		Type, Title string
		GridPos     struct{ X, Y, W, H int }
		Datasource  struct{ UID string }
		Targets     []struct{ Expr, RefID string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(read(t, "grafana/relay.json")), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestGrafanaDashboard(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	ids, cells := map[int]string{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] != "" || p.Title == "" {
			t.Errorf("panels %q and %q have the id %d", ids[p.ID], p.Title, p.ID)
		}
		ids[p.ID] = p.Title
		g := p.GridPos
		if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("panel %q is beyond the grid: %+v", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" {
					t.Fatalf("panels %q and %q overlap", other, p.Title)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("panel %q has the data source %q and %d queries", p.Title, p.Datasource.UID, len(p.Targets))
		}
	}
	if d.UID == "" || len(ids) < 20 {
		t.Errorf("the dashboard %q has %d panels", d.UID, len(ids))
	}
}

const relayFile = `
admin: {listen: "127.0.0.1:%d"}
pipelines:
  - name: orders
    source: {url: %q}
    archive: {table: outbox_archive}
    sink: {url: %q}
  - name: contacts
    source: {url: %q, table: contact_events}
    sinks:
      - {name: stream, url: %q, stream: "contacts"}
      - {name: crm, url: "%[6]s/crm", batch_size: 1}
    retry: {initial: 100ms, max: 200ms}
    dead_letter: {hook: {url: "%[6]s/hook"}}
`

// A real Prometheus scrapes a real relay. Its metrics are clean, every query of the dashboard and of the autoscaler has data, and alerts fire
// in a staged outage.
func TestMonitoring(t *testing.T) {
	t.Parallel()
	var outage atomic.Bool
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		switch {
		case err != nil || r.URL.Path == "/hook" || outage.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		case strings.Contains(string(body), `"bad"`):
			w.WriteHeader(http.StatusUnprocessableEntity)
		}
	}))
	t.Cleanup(api.Close)
	database, redis := testserver.Postgres(t), testserver.Redis(t).URL
	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "relay.yaml")
	write(t, config, fmt.Sprintf(relayFile, port, database, redis, database, redis, api.URL))
	relay := buildRelay(t)
	if out, err := exec.CommandContext(t.Context(), relay, "migrate", "-c", config).CombinedOutput(); err != nil {
		t.Fatalf("relay migrate: %v\n%s", err, out)
	}
	background(t, relay, "run", "-c", config)

	rules := regexp.MustCompile(`(?m)^ +for: .*\n`).ReplaceAllString(read(t, "prometheus/relay.rules.yaml"), "")
	prometheus := testserver.Prometheus(t, map[string]string{
		"relay.rules.yaml": rules,
		"prometheus.yml": fmt.Sprintf(`
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}
rule_files: [relay.rules.yaml]
scrape_configs:
  - job_name: relay
    static_configs: [{targets: ["127.0.0.1:%d"]}]
`, port),
	})
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	insert := func() {
		for _, sql := range []string{
			`INSERT INTO outbox_events (topic, payload) SELECT 'orders.created', '{}' FROM generate_series(1, 20)`,
			`INSERT INTO contact_events (topic, payload) SELECT 'contacts.changed', '{}' FROM generate_series(1, 5)`,
		} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	insert()
	if _, err := conn.Exec(t.Context(), `INSERT INTO contact_events (topic, payload) VALUES ('contacts.changed', '"bad"')`); err != nil {
		t.Fatal(err)
	}

	d := readDashboard(t)
	scaler := regexp.MustCompile(`(?m)^ +query: (.+)$`).FindStringSubmatch(read(t, "kubernetes/components/keda/scaledobject.yaml"))
	if scaler == nil {
		t.Fatal("the ScaledObject has no query")
	}
	panelsHave := func(outage bool) error { // data; in an outage those that are empty otherwise
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				if strings.HasSuffix(target.Expr, "== 1") != outage {
					continue
				}
				if err := prometheusHas(t, prometheus.URL, target.Expr); err != nil {
					return fmt.Errorf("panel %q: %w", p.Title, err)
				}
			}
		}
		return nil
	}
	testkit.Eventually(t, func() error {
		insert()
		if err := panelsHave(false); err != nil {
			return err
		}
		return prometheusHas(t, prometheus.URL, scaler[1])
	})
	cleanMetrics(t, port)

	fires := func(wanted map[string]string) {
		t.Helper()
		testkit.Eventually(t, func() error {
			alerts := get(t, prometheus.URL+"/api/v1/alerts")
			for name, labels := range wanted {
				if alert := `{"labels":{"alertname":"` + name + `",` + labels + `}`; !strings.Contains(alerts, alert) {
					return fmt.Errorf("the alert %s does not fire in %s", alert, alerts)
				}
			}
			return nil
		})
	}
	// Prometheus has seen the counter by now, so that this death increases it.
	if _, err := conn.Exec(t.Context(), `INSERT INTO contact_events (topic, payload) VALUES ('contacts.changed', '"bad"'), ('contacts.changed', '1')`); err != nil {
		t.Fatal(err)
	}
	fires(map[string]string{"RelayEventsDied": `"pipeline":"contacts","severity":"warning","sink":"crm"`})
	testkit.Eventually(t, func() error { // a sink that refuses everything, because it got nothing but the bad event, is not in an outage
		insert()
		if metrics := get(t, fmt.Sprintf("http://127.0.0.1:%d/metrics", port)); regexp.MustCompile(`(?m)^relay_not_ready\{.*sink="crm".*\} 1$`).MatchString(metrics) {
			return errors.New("crm is not ready")
		}
		return nil
	})
	outage.Store(true)
	insert()
	fires(map[string]string{
		"RelayNotReady":  `"pipeline":"contacts","severity":"warning","sink":"crm"`,
		"RelayHookFails": `"pipeline":"contacts","severity":"warning","sink":"crm"`,
	})
	testkit.Eventually(t, func() error { return panelsHave(true) })
	testkit.Eventually(t, func() error { // it may have fired before, because the sink refused the bad event
		if alerts, summary := get(t, prometheus.URL+"/api/v1/alerts"), "A relay cannot deliver contacts to crm: sink."; !strings.Contains(alerts, summary) {
			return fmt.Errorf("no alert says %q: %s", summary, alerts)
		}
		return nil
	})
}

// With traces a real Prometheus takes the metrics as OpenMetrics, with the traces of batches.
func TestMonitoring_Exemplars(t *testing.T) {
	t.Parallel()
	database := testserver.Postgres(t)
	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "relay.yaml")
	write(t, config, fmt.Sprintf(`
admin: {listen: "127.0.0.1:%d"}
pipelines:
  - {name: orders, source: {url: %q}, sink: {url: %q}}
`, port, database, testserver.Redis(t).URL))
	relay := buildRelay(t)
	if out, err := exec.CommandContext(t.Context(), relay, "migrate", "-c", config).CombinedOutput(); err != nil {
		t.Fatalf("relay migrate: %v\n%s", err, out)
	}
	background(t, "env", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", relay, "run", "-c", config) // no collector is there, and none is needed
	prometheus := testserver.Prometheus(t, map[string]string{"prometheus.yml": fmt.Sprintf(`
global: {scrape_interval: 500ms, scrape_timeout: 500ms}
scrape_configs:
  - job_name: relay
    static_configs: [{targets: ["127.0.0.1:%d"]}]
`, port)})
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	trace := regexp.MustCompile(`"trace_id":"[0-9a-f]{32}"`)
	for _, histogram := range []string{"relay_send_seconds", "relay_settle_seconds", "relay_delivery_latency_seconds"} {
		testkit.Eventually(t, func() error {
			if _, err := conn.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload) VALUES ('orders', '{}')"); err != nil {
				return err
			}
			found := get(t, prometheus.URL+"/api/v1/query_exemplars?start=0&end=9999999999&query="+histogram+"_bucket")
			if !trace.MatchString(found) || !strings.Contains(found, `"pipeline":"orders"`) {
				return fmt.Errorf("%s has no exemplar: %s", histogram, found)
			}
			return nil
		})
	}
	if err := prometheusHas(t, prometheus.URL, "relay_events_delivered_total"); err != nil { // the names are the same
		t.Error(err)
	}
}

var metricName = regexp.MustCompile(`\brelay_\w+`)

// cleanMetrics checks what a relay exposes: promtool has nothing to say, and every metric of the documentation, of the rules and of
// the dashboard is there.
func cleanMetrics(t *testing.T, port int) {
	t.Helper()
	metrics := get(t, fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
	promtool := testserver.Promtool(t, "check", "metrics")
	promtool.Stdin = strings.NewReader(metrics)
	if out, err := promtool.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
	_, documented, _ := strings.Cut(read(t, "../docs/monitoring.md"), "\n## Metrics\n")
	documented, _, _ = strings.Cut(documented, "\n## Long transactions\n")
	used := documented + read(t, "prometheus/relay.rules.yaml") + read(t, "grafana/relay.json")
	exposed := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (relay_\w+) `).FindAllStringSubmatch(metrics, -1) {
		exposed[m[1]] = true
		if !strings.Contains(documented, "`"+m[1]) {
			t.Errorf("docs/monitoring.md lacks %s", m[1])
		}
	}
	for _, name := range metricName.FindAllString(used, -1) {
		if base := strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"); !exposed[base] && !strings.HasSuffix(name, "_") {
			t.Errorf("the metric %s is used, and the relay does not have it", name)
		}
	}
}

var dashboardVariables = strings.NewReplacer("$__rate_interval", "5s", "$__range", "1h", "$pipeline", ".*", "$sink", ".*")

// prometheusHas reports as an error that a query has no number.
func prometheusHas(t *testing.T, server, query string) error {
	t.Helper()
	query = dashboardVariables.Replace(query)
	var answer struct {
		Status, Error string
		Data          struct{ Result []struct{ Value [2]any } }
	}
	text := get(t, server+"/api/v1/query?query="+url.QueryEscape(query))
	if err := json.Unmarshal([]byte(text), &answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %s", query, text)
	}
	for _, r := range answer.Data.Result {
		if n, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64); err == nil && !math.IsNaN(n) {
			return nil
		}
	}
	return fmt.Errorf("%s has no data: %s", query, text)
}
