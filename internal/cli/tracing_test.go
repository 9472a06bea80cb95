package cli

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/outboxrelay/relay/internal/testserver"
)

// collector receives spans by OTLP, with the server that the protocol's own definition generates.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer

	mu       sync.Mutex
	spans    []*tracepb.Span
	resource map[string]string
	keys     []string // the headers api-key
}

func (c *collector) Export(ctx context.Context, r *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	c.add(r, md.Get("api-key"))
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func (c *collector) add(r *collectorpb.ExportTraceServiceRequest, keys []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys = keys
	for _, rs := range r.GetResourceSpans() {
		c.resource = attributes(rs.GetResource().GetAttributes())
		for _, ss := range rs.GetScopeSpans() {
			c.spans = append(c.spans, ss.GetSpans()...)
		}
	}
}

// ServeHTTP is the protocol over HTTP.
func (c *collector) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	r := &collectorpb.ExportTraceServiceRequest{}
	if err == nil {
		err = proto.Unmarshal(body, r)
	}
	if err != nil || req.URL.Path != "/v1/traces" || req.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, fmt.Sprintf("%s %s: %v", req.URL, req.Header, err), http.StatusBadRequest)
		return
	}
	c.add(r, req.Header.Values("api-key"))
	answer, err := proto.Marshal(&collectorpb.ExportTraceServiceResponse{})
	w.Header().Set("Content-Type", "application/x-protobuf")
	if _, wrong := w.Write(answer); err != nil || wrong != nil {
		http.Error(w, "no answer", http.StatusInternalServerError)
	}
}

// startCollector returns the environment of a relay that exports to the collector.
func startCollector(t *testing.T, protocol string) (c *collector, env []string) {
	t.Helper()
	c = &collector{}
	var url string
	if protocol == "grpc" {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		collectorpb.RegisterTraceServiceServer(server, c)
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(l) }()
		t.Cleanup(func() {
			server.Stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		url = "http://" + l.Addr().String()
	} else {
		server := httptest.NewServer(c)
		t.Cleanup(server.Close)
		url = server.URL
	}
	return c, []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + url, "OTEL_EXPORTER_OTLP_PROTOCOL=" + protocol, "OTEL_EXPORTER_OTLP_HEADERS=api-key=s3cret%2C1",
		"OTEL_SERVICE_NAME=shop-relay", "OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test",
	}
}

func attributes(kvs []*commonpb.KeyValue) map[string]string {
	all := map[string]string{}
	for _, kv := range kvs {
		switch v := kv.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			all[kv.GetKey()] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			all[kv.GetKey()] = fmt.Sprint(v.IntValue)
		default:
			all[kv.GetKey()] = kv.GetValue().String()
		}
	}
	return all
}

// trace is the spans of a batch.
type trace struct {
	batch, claim, send, settle *tracepb.Span
}

// of returns the last trace of a sink.
func (c *collector) of(sink string) (tr trace, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.GetName() == "relay orders" && attributes(s.GetAttributes())["relay.sink"] == sink {
			tr.batch = s
		}
	}
	if tr.batch == nil {
		return tr, fmt.Errorf("there is no span of a batch for %s", sink)
	}
	for _, s := range c.spans {
		if string(s.GetParentSpanId()) != string(tr.batch.GetSpanId()) {
			continue
		}
		switch name, _, _ := strings.Cut(s.GetName(), " "); name {
		case "claim":
			tr.claim = s
		case "send":
			tr.send = s
		case "settle":
			tr.settle = s
		}
	}
	if tr.claim == nil || tr.send == nil || tr.settle == nil {
		return tr, fmt.Errorf("%s has not all spans", sink)
	}
	return tr, nil
}

// traceparent is the header for a span.
func traceparent(s *tracepb.Span) string {
	return "00-" + hex.EncodeToString(s.GetTraceId()) + "-" + hex.EncodeToString(s.GetSpanId()) + "-01"
}

// The trace of an application, in the headers of its event.
const (
	appTrace = "0af7651916cd43dd8448eb211c80319c"
	appSpan  = "b7ad6b7169203331"
	appLine  = "00-" + appTrace + "-" + appSpan + "-01"
)

// A trace leads from an application's insert through the relay to the consumers of HTTP, NATS and Redis. Events keep the trace that they
// brought; the others continue that of their send.
func TestRun_Traces(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			tracesToConsumers(t, protocol)
		})
	}
}

func tracesToConsumers(t *testing.T, protocol string) {
	db, bus, redisURL := newDatabase(t), testserver.NATS(t), testserver.SharedRedis(t)
	nc, err := nats.Connect(bus.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	type request struct {
		header http.Header
		body   string
	}
	requests := make(chan request, 10)
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		requests <- request{r.Header, string(body)}
	}))
	t.Cleanup(api.Close)
	db.exec(`INSERT INTO outbox_events (topic, key, payload, headers) VALUES
		('orders', 'a', '{"n":1}', '{"traceparent":"` + appLine + `","tenant":"x"}'), ('orders', 'b', '{"n":2}', NULL)`)
	c, env := startCollector(t, protocol)
	path := write(t, `admin: {listen: ""}
pipelines:
  - name: orders
    source: {url: "`+db.url+`"}
    sinks:
      - {name: api, url: "`+api.URL+`/orders"}
      - {name: bus, url: "`+bus.URL+`", subject: "{topic}"}
      - {name: cache, url: "`+redisURL+`", stream: "{topic}"}
`)
	do(t, nil, "migrate", "-c", path)
	r := start(t, env, "run", "-c", path)
	drained(t, db)
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	if !strings.Contains(r.stderr.String(), `msg="exporting traces"`) {
		t.Error("the log does not say that traces are exported")
	}
	traces := map[string]trace{}
	for sink, want := range map[string]map[string]string{
		"api":   {"http.request.method": "POST", "http.response.status_code": "200", "server.address": "127.0.0.1", "messaging.batch.message_count": "2"},
		"bus":   {"messaging.system": "nats", "messaging.destination.template": "{topic}", "messaging.destination.name": "orders", "messaging.operation.type": "send"},
		"cache": {"messaging.system": "redis", "messaging.destination.name": "orders", "messaging.batch.message_count": "2", "messaging.operation.name": "send"},
	} {
		tr, err := c.of(sink)
		if err != nil {
			t.Fatal(err)
		}
		traces[sink] = tr
		got := attributes(tr.send.GetAttributes())
		for name, value := range want {
			if got[name] != value {
				t.Errorf("%s: %s is %q, want %q; all are %v", sink, name, got[name], value, got)
			}
		}
		links := tr.batch.GetLinks()
		if len(links) != 1 || hex.EncodeToString(links[0].GetTraceId()) != appTrace || hex.EncodeToString(links[0].GetSpanId()) != appSpan {
			t.Errorf("%s: the links are %v", sink, links)
		}
		batch := attributes(tr.batch.GetAttributes())
		if len(tr.batch.GetParentSpanId()) != 0 || batch["relay.events.delivered"] != "2" || batch["messaging.operation.type"] != "process" {
			t.Errorf("%s: the batch has the parent %x and %v", sink, tr.batch.GetParentSpanId(), batch)
		}
		if tr.batch.GetStartTimeUnixNano() > tr.claim.GetStartTimeUnixNano() || tr.batch.GetEndTimeUnixNano() < tr.settle.GetEndTimeUnixNano() {
			t.Errorf("%s: the batch does not last from its claim to its settle", sink)
		}
		if tr.batch.GetStatus().GetCode() != tracepb.Status_STATUS_CODE_UNSET || tr.send.GetStatus().GetCode() != tracepb.Status_STATUS_CODE_UNSET {
			t.Errorf("%s: the status is %v, %v", sink, tr.batch.GetStatus(), tr.send.GetStatus())
		}
	}
	if c.resource["service.name"] != "shop-relay" || c.resource["deployment.environment.name"] != "test" {
		t.Errorf("the resource is %v", c.resource)
	}
	if !slices.Equal(c.keys, []string{"s3cret,1"}) {
		t.Errorf("the headers api-key are %q", c.keys)
	}

	got := <-requests
	if want := traceparent(traces["api"].send); got.header.Get("traceparent") != want {
		t.Errorf("the request has the traceparent %q, want %q", got.header.Get("traceparent"), want)
	}
	var body struct {
		Events []struct{ Headers map[string]string }
	}
	if err := json.Unmarshal([]byte(got.body), &body); err != nil || len(body.Events) != 2 || body.Events[0].Headers["traceparent"] != appLine || body.Events[1].Headers != nil {
		t.Errorf("%v: the body was changed: %s", err, got.body)
	}
	for i, want := range []string{appLine, traceparent(traces["bus"].send)} {
		m, err := stream.GetMsg(t.Context(), uint64(i+1))
		if err != nil {
			t.Fatal(err)
		}
		if parents := m.Header["traceparent"]; !slices.Equal(parents, []string{want}) {
			t.Errorf("message %d has the traceparent %q, want %q", i+1, parents, want)
		}
		if id := m.Header.Get("Nats-Msg-Id"); !strings.HasPrefix(id, fmt.Sprintf("orders:%d:", i+1)) {
			t.Errorf("message %d has the id %q", i+1, id)
		}
	}
	entries, err := connect(t, redisURL).XRange(t.Context(), "orders", "-", "+").Result()
	if err != nil || len(entries) != 2 {
		t.Fatalf("%v: %v", err, entries)
	}
	for i, want := range []string{`{"traceparent": "` + appLine + `", "tenant": "x"}`, `{"traceparent":"` + traceparent(traces["cache"].send) + `"}`} {
		compact := func(s string) string { return strings.ReplaceAll(s, " ", "") }
		if headers, _ := entries[i].Values["headers"].(string); compact(headers) != compact(want) {
			t.Errorf("entry %d has the headers %s, want %s", i+1, headers, want)
		}
		if names := slices.Sorted(maps.Keys(entries[i].Values)); !slices.Equal(names, []string{"group_id", "headers", "id", "key", "payload", "topic"}) {
			t.Errorf("entry %d has the fields %q", i+1, names)
		}
	}
}

// A refusal and an outage are in the spans, without the secrets of the configuration.
func TestRun_TracesOfFailures(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		if _, err := fmt.Fprintf(w, "no, %s", r.Header.Get("Authorization")); err != nil {
			t.Log(err)
		}
	}))
	t.Cleanup(api.Close)
	db.insert(1)
	c, env := startCollector(t, "http/protobuf")
	path := write(t, `admin: {listen: ""}
pipelines:
  - name: orders
    source: {url: "`+db.url+`"}
    sink: {url: "`+api.URL+`/orders", bearer: s3cret-token}
`)
	r := start(t, append(env, "OTEL_BSP_SCHEDULE_DELAY=20"), "run", "-c", path)
	var tr trace
	testserver.Eventually(t, func() (err error) {
		tr, err = c.of("")
		return err
	})
	r.signal(syscall.SIGTERM)
	r.exit()
	for name, s := range map[string]*tracepb.Span{"batch": tr.batch, "send": tr.send} {
		if text := s.GetStatus().GetMessage(); s.GetStatus().GetCode() != tracepb.Status_STATUS_CODE_ERROR || !strings.Contains(text, "503") || strings.Contains(text, "s3cret") {
			t.Errorf("%s: the status is %v", name, s.GetStatus())
		}
	}
	if got := attributes(tr.send.GetAttributes()); got["error.type"] != "outage" || got["http.response.status_code"] != "503" {
		t.Errorf("the send has %v", got)
	}
}

// A collector that is away or does not answer costs nothing but traces: all is delivered, and the process ends in time.
func TestRun_CollectorAway(t *testing.T) {
	t.Parallel()
	silent := listen(t) // accepts connections, and never answers
	t.Cleanup(func() { _ = silent.Close() })
	for name, env := range map[string][]string{
		"refused":       {"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + freeAddress(t)},
		"refused, grpc": {"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + freeAddress(t), "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"},
		"silent":        {"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + silent.Addr().String()},
		"silent, grpc":  {"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + silent.Addr().String(), "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, out := newDatabase(t), t.TempDir()+"/events"
			db.insert(5000)
			more := []string{"OTEL_BSP_SCHEDULE_DELAY=10", "OTEL_BSP_MAX_QUEUE_SIZE=8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=4", "OTEL_EXPORTER_OTLP_TIMEOUT=50"}
			r := start(t, append(env, more...), "run", "-c", write(t, onePipeline("orders", db.url, "file://"+out, "    batch_size: 50")))
			drained(t, db)
			r.waitForLog(`level=WARN msg="exporting traces failed, spans are dropped; deliveries go on" error=`)
			r.signal(syscall.SIGTERM)
			if code := r.exit(); code != 0 {
				t.Errorf("exit status %d", code)
			}
			if n := strings.Count(r.stderr.String(), "exporting traces failed"); n > 10 {
				t.Errorf("%d lines of the log", n)
			}
		})
	}
}

// A wrong variable is one line, and turns traces off; deliveries go on.
func TestRun_WrongTraceVariables(t *testing.T) {
	t.Parallel()
	db, out := newDatabase(t), t.TempDir()+"/events"
	db.insert(1)
	env := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318", "OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=5", "OTEL_EXPORTER_OTLP_HEADERS=s3cret"}
	r := start(t, env, "run", "-c", write(t, onePipeline("orders", db.url, "file://"+out)))
	drained(t, db)
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	log := r.stderr.String()
	for _, want := range []string{
		`level=ERROR msg="environment: OTEL_TRACES_SAMPLER_ARG is \"5\"; expected a ratio from 0 to 1; no traces are exported: correct it and restart the relay"`,
		`level=ERROR msg="environment: OTEL_EXPORTER_OTLP_HEADERS has a part that is no name=value; expected name=value, separated by commas, with special characters as %2C; no traces`,
	} {
		if strings.Count(log, want) != 1 {
			t.Errorf("the log has not the one line %s", want)
		}
	}
	if strings.Count(log, "OTEL_") != 2 || strings.Contains(log, "exporting traces") {
		t.Error("the log says more of traces")
	}
}

