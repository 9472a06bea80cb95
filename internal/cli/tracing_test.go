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
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// collector receives spans by OTLP, with the server that the protocol's own definition generates.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer

	mu       sync.Mutex
	spans    []serviceSpan
	resource map[string]string // the relay's
	keys     []string          // its headers api-key
}

// serviceSpan is a span with the name of its service.
type serviceSpan struct {
	*tracepb.Span
	service string
}

func (c *collector) Export(ctx context.Context, r *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	c.add(r, md.Get("api-key"))
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func (c *collector) add(r *collectorpb.ExportTraceServiceRequest, keys []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range r.GetResourceSpans() {
		resource := attributes(rs.GetResource().GetAttributes())
		if resource["service.name"] == "relay of shop" {
			c.resource, c.keys = resource, keys
		}
		for _, ss := range rs.GetScopeSpans() {
			for _, span := range ss.GetSpans() {
				c.spans = append(c.spans, serviceSpan{span, resource["service.name"]})
			}
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
		"OTEL_SERVICE_NAME=relay of shop", "OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test",
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
			tr.batch = s.Span
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
			tr.claim = s.Span
		case "send":
			tr.send = s.Span
		case "settle":
			tr.settle = s.Span
		}
	}
	if tr.claim == nil || tr.send == nil || tr.settle == nil {
		return tr, fmt.Errorf("%s has not all spans", sink)
	}
	return tr, nil
}

// parentOf is the header that the work of a service continues.
func (c *collector) parentOf(service string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.service == service {
			return traceparent(&tracepb.Span{TraceId: s.GetTraceId(), SpanId: s.GetParentSpanId()})
		}
	}
	return "nothing"
}

// traceparent is the header for a span.
func traceparent(s *tracepb.Span) string {
	return "00-" + hex.EncodeToString(s.GetTraceId()) + "-" + hex.EncodeToString(s.GetSpanId()) + "-01"
}

// program is another program with traces.
type program struct {
	provider *sdktrace.TracerProvider
}

// newProgram returns a program that exports to the collector.
func newProgram(t *testing.T, c *collector, name string) *program {
	t.Helper()
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	exporter, err := otlptracehttp.New(t.Context(), otlptracehttp.WithEndpointURL(server.URL+"/v1/traces"))
	if err != nil {
		t.Fatal(err)
	}
	return &program{sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", name))))}
}

func (p *program) end(t *testing.T) {
	t.Helper()
	if err := p.provider.Shutdown(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

// consume does the work of a consumer that got this traceparent.
func (p *program) consume(name, traceparent string) {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceparent})
	_, span := p.provider.Tracer("test").Start(ctx, name, oteltrace.WithSpanKind(oteltrace.SpanKindConsumer))
	span.End()
}

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
	c, env := startCollector(t, protocol)
	crm, mail, search := newProgram(t, c, "crm"), newProgram(t, c, "mail"), newProgram(t, c, "search")
	requests := make(chan request, 10)
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		crm.consume("POST /orders", r.Header.Get("traceparent"))
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		requests <- request{r.Header, string(body)}
	}))
	t.Cleanup(api.Close)
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
	r.waitForLog("pipeline runs")

	consumed := make(chan error, 2)
	messages, err := nc.SubscribeSync("orders")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		m, err := messages.NextMsgWithContext(t.Context())
		if err == nil {
			mail.consume("process orders", m.Header.Get("traceparent"))
		}
		consumed <- err
	}()
	reader := connect(t, redisURL)
	go func() {
		read, err := reader.XRead(t.Context(), &redis.XReadArgs{Streams: []string{"orders", "0"}, Count: 1, Block: time.Minute}).Result()
		if err == nil {
			headers := map[string]string{}
			text, _ := read[0].Messages[0].Values["headers"].(string)
			err = json.Unmarshal([]byte(text), &headers)
			search.consume("process orders", headers["traceparent"])
		}
		consumed <- err
	}()
	shop := newProgram(t, c, "shop")
	tracer := shop.provider.Tracer("test")
	handling, served := tracer.Start(t.Context(), "POST /orders", oteltrace.WithSpanKind(oteltrace.SpanKindServer))
	_, creating := tracer.Start(handling, "create orders", oteltrace.WithSpanKind(oteltrace.SpanKindProducer))
	app := creating.SpanContext()
	appLine := "00-" + app.TraceID().String() + "-" + app.SpanID().String() + "-01"
	db.exec(`INSERT INTO outbox_events (topic, key, payload, headers) VALUES
		('orders', 'a', '{"n":1}', '{"traceparent":"` + appLine + `","tenant":"x"}'), ('orders', 'b', '{"n":2}', NULL)`)
	creating.End()
	served.End()

	drained(t, db)
	for range 2 {
		if err := <-consumed; err != nil {
			t.Error(err)
		}
	}
	for _, p := range []*program{shop, crm, mail, search} {
		p.end(t)
	}
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
		if len(links) != 1 || traceparent(&tracepb.Span{TraceId: links[0].GetTraceId(), SpanId: links[0].GetSpanId()}) != appLine {
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
	if c.resource["service.name"] != "relay of shop" || c.resource["deployment.environment.name"] != "test" {
		t.Errorf("the resource is %v", c.resource)
	}
	if !slices.Equal(c.keys, []string{"s3cret,1"}) {
		t.Errorf("the headers api-key are %q", c.keys)
	}

	for _, want := range []struct{ service, parent string }{
		{"crm", traceparent(traces["api"].send)}, {"mail", appLine}, {"search", appLine},
	} {
		if got := c.parentOf(want.service); got != want.parent {
			t.Errorf("the work of %s continues %s, want %s", want.service, got, want.parent)
		}
	}
	if *update && protocol == "grpc" {
		picture(t, c.spans)
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
	admin := freeAddress(t)
	path := write(t, `admin: {listen: "`+admin+`"}
pipelines:
  - name: orders
    source: {url: "`+db.url+`"}
    sink: {url: "`+api.URL+`/orders", bearer: s3cret-token}
    retry: {initial: 1m, max: 1m}
`)
	r := start(t, append(env, "OTEL_BSP_SCHEDULE_DELAY=20"), "run", "-c", path)
	var tr trace
	testserver.Eventually(t, func() (err error) {
		tr, err = c.of("")
		return err
	})
	of := hex.EncodeToString(tr.batch.GetTraceId())
	r.waitForLog(` trace_id=` + of + ` span_id=` + hex.EncodeToString(tr.batch.GetSpanId()))
	metrics := openMetrics(t, "http://"+admin+"/metrics")
	if want := regexp.MustCompile(`(?m)^relay_send_seconds_bucket\{pipeline="orders",le="[^"]+"\} 1 # \{trace_id="` + of + `"\} `); !want.MatchString(metrics) {
		t.Errorf("no line matches %s in\n%s", want, metrics)
	}
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

// While the database or the sink is away no batch has a span: what fails is one.
func TestRun_TracesOfOutages(t *testing.T) {
	t.Parallel()
	failed := func(t *testing.T, c *collector, names ...string) (s *tracepb.Span) {
		t.Helper()
		testserver.Eventually(t, func() error {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, one := range c.spans {
				if slices.Contains(names, one.GetName()) && len(one.GetParentSpanId()) == 0 {
					s = one.Span
					return nil
				}
			}
			return fmt.Errorf("there is no span %q", names)
		})
		if text := s.GetStatus().GetMessage(); s.GetStatus().GetCode() != tracepb.Status_STATUS_CODE_ERROR || !strings.Contains(text, "connect") {
			t.Errorf("the status of %s is %v", s.GetName(), s.GetStatus())
		}
		return s
	}
	t.Run("database", func(t *testing.T) {
		t.Parallel()
		server := testserver.OwnPostgres(t, testserver.PostgresOptions{})
		db := newDatabaseAt(t, server.URL)
		c, env := startCollector(t, "http/protobuf")
		r := start(t, append(env, "OTEL_BSP_SCHEDULE_DELAY=20"), "run", "-c", write(t, onePipeline("orders", db.url, "stdout:")))
		r.waitForLog("pipeline runs")
		testkit.NoError(t, server.Stop())
		s := failed(t, c, "count", "claim")
		if got := attributes(s.GetAttributes()); got["error.type"] != s.GetName()+"_failed" || got["relay.pipeline"] != "orders" {
			t.Errorf("%s has %v", s.GetName(), got)
		}
		r.signal(syscall.SIGTERM)
		r.exit()
		r = start(t, append(env, "OTEL_BSP_SCHEDULE_DELAY=20"), "run", "-c", write(t, onePipeline("again", db.url, "stdout:")))
		if got := attributes(failed(t, c, "connect").GetAttributes()); got["error.type"] != "connect_failed" || got["relay.pipeline"] != "again" {
			t.Errorf("the connect has %v", got)
		}
		r.signal(syscall.SIGTERM)
		r.exit()
		c.mu.Lock()
		defer c.mu.Unlock()
		u, err := url.Parse(db.url)
		testkit.NoError(t, err)
		if password, ok := u.User.Password(); !ok || strings.Contains(fmt.Sprint(c.spans), password) {
			t.Error("a span has the password")
		}
	})
	t.Run("sink", func(t *testing.T) {
		t.Parallel()
		db := newDatabase(t)
		c, env := startCollector(t, "http/protobuf")
		r := start(t, append(env, "OTEL_BSP_SCHEDULE_DELAY=20"), "run", "-c", write(t, onePipeline("orders", db.url, "http://"+freeAddress(t))))
		if got := attributes(failed(t, c, "check orders").GetAttributes()); got["error.type"] != "outage" || got["server.address"] != "127.0.0.1" || got["http.request.method"] != "" {
			t.Errorf("the check has %v", got)
		}
		r.signal(syscall.SIGTERM)
		r.exit()
	})
}

// openMetrics scrapes as Prometheus does.
func openMetrics(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	testkit.NoError(t, err)
	request.Header.Set("Accept", "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4")
	answer, err := http.DefaultClient.Do(request)
	testkit.NoError(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	testkit.NoError(t, err)
	return string(body)
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
