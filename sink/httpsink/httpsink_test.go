package httpsink_test

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

func TestMain(m *testing.M) { testserver.Main(m) }

var keeps = sinktest.Keeps{
	Topic: true, Key: true, Headers: true, HeadersText: true, CreatedAt: true, GroupID: true, AnyText: true, Bytes: true,
}

// plain sends JSON to one URL over HTTP/1.1.
func plain() sinktest.Harness {
	h := harness(httpsink.Config{}, "", false)
	h.Keeps.LineBreaks = true
	return h
}

// secured sends NDJSON to a URL for each topic over HTTP/2 with TLS.
func secured() sinktest.Harness {
	h := harness(httpsink.Config{Format: httpsink.NDJSON}, "/to/{topic}", true)
	return h
}

// translated makes the bodies of plain with one program and reads the responses with another.
func translated() sinktest.Harness {
	h := harness(httpsink.Config{
		Request: `{pipeline, group_id, events: [.events[] | .]}`, Results: `[.events[] | select(.id == "none") | {id}]`,
	}, "", false)
	h.Keeps.Reencoded, h.Keeps.HeadersText = true, false
	return h
}

func TestConformance_JSON(t *testing.T)            { sinktest.Run(t, plain()) }
func TestConformance_Programs(t *testing.T)        { sinktest.Run(t, translated()) }
func TestConformance_NDJSONOverHTTP2(t *testing.T) { sinktest.Run(t, secured()) }
func BenchmarkJSON(b *testing.B)                   { sinktest.Bench(b, plain()) }
func BenchmarkNDJSONHTTP2(b *testing.B)            { sinktest.Bench(b, secured()) }

func harness(c httpsink.Config, path string, secure bool) sinktest.Harness {
	h := sinktest.Harness{Keeps: keeps}
	h.Open = func(t testing.TB) sinktest.Destination {
		s := &bulkServer{t: t, secure: secure}
		s.start(t)
		t.Cleanup(s.stop)
		d := sinktest.Destination{
			Connect: func(t testing.TB) sink.Sink {
				c := c
				c.URL, c.TLS.CA = s.url+path, s.ca
				return newSink(t, c)
			},
			Arrivals: func(testing.TB) []sinktest.Arrival { return s.arrivals() },
			Stop:     func(testing.TB) { s.stop() },
			Start:    func(t testing.TB) { s.start(t) },
		}
		if path != "" {
			d.BreakAddress = func(_ testing.TB, topic string) { s.missing.Store("/to/" + topic) }
			d.Address = func(topic string) string { return "/to/" + topic }
		}
		return d
	}
	h.OpenBroken = func(t testing.TB) sink.Sink {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		testkit.NoError(t, err)
		testkit.NoError(t, l.Close())
		return newSink(t, httpsink.Config{URL: "http://" + l.Addr().String()})
	}
	return h
}

func newSink(t testing.TB, c httpsink.Config) *httpsink.Sink {
	t.Helper()
	s, err := httpsink.New(c)
	testkit.NoError(t, err)
	return s
}

// bulkServer is a bulk API that checks each request.
type bulkServer struct {
	t      testing.TB
	secure bool
	url    string
	ca     string // file with the certificate to trust
	http   *httptest.Server

	missing atomic.Value // a path that does not exist

	mu  sync.Mutex
	all []sinktest.Arrival
}

func (s *bulkServer) start(t testing.TB) {
	t.Helper()
	s.http = httptest.NewUnstartedServer(s)
	if s.url != "" { // again, at the same address
		l, err := net.Listen("tcp", strings.TrimPrefix(strings.TrimPrefix(s.url, "https://"), "http://"))
		testkit.NoError(t, err)
		testkit.NoError(t, s.http.Listener.Close())
		s.http.Listener = l
	}
	if s.secure {
		s.http.EnableHTTP2 = true
		s.http.StartTLS()
		s.ca = caFile(t, s.http.Certificate())
	} else {
		s.http.Start()
	}
	s.url = s.http.URL
}

func (s *bulkServer) stop() {
	s.http.CloseClientConnections()
	s.http.Close()
}

func caFile(t testing.TB, c *x509.Certificate) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	testkit.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}), 0o600))
	return file
}

func (s *bulkServer) arrivals() []sinktest.Arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]sinktest.Arrival(nil), s.all...)
}

func (s *bulkServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the connection was cut
	}
	if s.secure && r.ProtoMajor != 2 {
		s.t.Errorf("the request came over %s", r.Proto)
	}
	if r.URL.Path == s.missing.Load() {
		http.NotFound(w, r)
		return
	}
	groupID := r.Header.Get("Idempotency-Key")
	var lines [][]byte
	switch contentType := r.Header.Get("Content-Type"); contentType {
	case "application/json":
		lines, err = events(body, groupID)
	case "application/x-ndjson":
		lines = bytes.SplitAfter(body, []byte("\n"))
		lines = lines[:len(lines)-1] // what stands behind the last line break: nothing
	default:
		err = fmt.Errorf("Content-Type is %q", contentType)
	}
	if err != nil {
		s.t.Errorf("%v: %.200q", err, body)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range lines {
		a := sinktest.ParseEnvelope(s.t, line)
		a.GroupID, a.Address = groupID, r.URL.Path
		s.all = append(s.all, a)
	}
	w.WriteHeader(http.StatusAccepted)
}

// events returns the envelopes in the body of a JSON request.
func events(body []byte, groupID string) ([][]byte, error) {
	var batch struct {
		Pipeline string            `json:"pipeline"`
		GroupID  string            `json:"group_id"`
		Events   []json.RawMessage `json:"events"`
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&batch); err != nil {
		return nil, err
	}
	if batch.Pipeline != sinktest.Pipeline || batch.GroupID != groupID {
		return nil, fmt.Errorf("pipeline %q, group_id %q", batch.Pipeline, batch.GroupID)
	}
	lines := make([][]byte, len(batch.Events))
	for i := range lines {
		lines[i] = batch.Events[i]
	}
	return lines, nil
}
