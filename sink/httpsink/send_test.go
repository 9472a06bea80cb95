package httpsink_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

var groupID = uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057")

// batch has events with the ids 1, 2, ... and these topics.
func batch(topics ...string) *buffer.Batch {
	b := &buffer.Batch{GroupID: groupID, Pipeline: "orders", PayloadIsJSON: true, FirstSend: true}
	for i, topic := range topics {
		b.Events = append(b.Events, outbox.Event{
			ID: int64(i + 1), Topic: topic, Payload: []byte("{\n}"), CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 123456000, time.UTC),
		})
	}
	return b
}

// serve starts a server and returns its URL.
func serve(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func open(t *testing.T, c httpsink.Config) *httpsink.Sink {
	t.Helper()
	s := newSink(t, c)
	t.Cleanup(func() { testkit.NoError(t, s.Close()) })
	return s
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func expectOutage(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, sink.ErrUnavailable) || errors.Is(err, sink.ErrPermanent) {
		t.Fatalf("got %v, want an outage", err)
	}
}

type request struct {
	Method, URL, Host, Body string
	Header                  http.Header
}

func TestSend_Request(t *testing.T) {
	t.Parallel()
	const envelopes = `{"id":"1","topic":"a","payload":{` + "\n" + `},"created_at":"2026-01-02T03:04:05.123456Z"},` +
		`{"id":"2","topic":"a","payload":{` + "\n" + `},"created_at":"2026-01-02T03:04:05.123456Z"}`
	const lines = `{"id":"1","topic":"a","payload":{},"created_at":"2026-01-02T03:04:05.123456Z"}` + "\n" +
		`{"id":"2","topic":"a","payload":{},"created_at":"2026-01-02T03:04:05.123456Z"}` + "\n"
	const object = `{"pipeline":"orders","group_id":"01890a5d-ac96-774b-bcce-b302099a8057","events":[` + envelopes + `]}`
	for name, c := range map[string]struct {
		config httpsink.Config
		login  string
		path   string
		want   request
	}{
		"json": {
			path: "/in",
			want: request{Method: "POST", URL: "/in", Body: object, Header: http.Header{"Content-Type": {"application/json"}}},
		},
		"ndjson": {
			config: httpsink.Config{Format: "ndjson", Method: "PUT"}, path: "/in?a=b%20c",
			want: request{Method: "PUT", URL: "/in?a=b%20c", Body: lines, Header: http.Header{"Content-Type": {"application/x-ndjson"}}},
		},
		"headers": {
			config: httpsink.Config{Headers: map[string]string{
				"content-type": "application/vnd.api+json", "X-Token": "abc", "host": "virtual.example", "User-Agent": "mine",
			}},
			want: request{Method: "POST", URL: "/", Host: "virtual.example", Body: object, Header: http.Header{
				"Content-Type": {"application/vnd.api+json"}, "X-Token": {"abc"}, "User-Agent": {"mine"},
			}},
		},
		"login": {
			login: "app:p%40ss@", path: "/{topic}",
			want: request{Method: "POST", URL: "/a", Body: object, Header: http.Header{
				"Content-Type": {"application/json"}, "Authorization": {"Basic YXBwOnBAc3M="},
			}},
		},
		"a header instead of the login": {
			login: "app:pass@", config: httpsink.Config{Headers: map[string]string{"Authorization": "Bearer x"}},
			want: request{Method: "POST", URL: "/", Body: object, Header: http.Header{
				"Content-Type": {"application/json"}, "Authorization": {"Bearer x"},
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := make(chan request, 1)
			url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				got <- request{Method: r.Method, URL: r.RequestURI, Host: r.Host, Body: string(body), Header: r.Header}
			})
			c.config.URL = strings.Replace(url, "://", "://"+c.login, 1) + c.path
			testkit.NoError(t, open(t, c.config).Send(testContext(t), batch("a", "a")))
			r := <-got
			if c.want.Host == "" {
				c.want.Host = strings.TrimPrefix(url, "http://")
			}
			c.want.Header.Set("Idempotency-Key", groupID.String())
			if c.want.Header.Get("User-Agent") == "" {
				c.want.Header.Set("User-Agent", "relay")
			}
			r.Header.Del("Accept-Encoding")
			r.Header.Del("Content-Length")
			if diff := cmp.Diff(c.want, r); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSend_ErrorQuotesResponse(t *testing.T) {
	t.Parallel()
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnprocessableEntity)
		write(t, w, "{\"error\":\n\"amount is negative\"}"+strings.Repeat(" and so on", 100))
	})
	err := open(t, httpsink.Config{URL: url}).Send(testContext(t), batch("a"))
	if !errors.Is(err, sink.ErrPermanent) || errors.Is(err, sink.ErrUnavailable) {
		t.Errorf("got %v, want a permanent rejection", err)
	}
	if text := err.Error(); !strings.Contains(text, `422 Unprocessable Entity: {"error": "amount is negative"} and so on`) || len(text) > 300 {
		t.Errorf("got %q", text)
	}
}

func write(t *testing.T, w io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Error(err)
	}
}

func TestSend_RetryAfter(t *testing.T) {
	t.Parallel()
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	err := open(t, httpsink.Config{URL: url}).Send(testContext(t), batch("a"))
	expectOutage(t, err)
	var timed *sink.UnavailableError
	if !errors.As(err, &timed) || timed.RetryAfter != 7*time.Second {
		t.Errorf("got %v, want a *sink.UnavailableError of 7s", err)
	}
}

func TestSend_Redirect(t *testing.T) {
	t.Parallel()
	var followed atomic.Bool
	elsewhere := serve(t, func(http.ResponseWriter, *http.Request) { followed.Store(true) })
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
	})
	expectOutage(t, open(t, httpsink.Config{URL: url}).Send(testContext(t), batch("a")))
	if followed.Load() {
		t.Error("the redirect was followed")
	}
}

func TestSend_HidesSecrets(t *testing.T) {
	t.Parallel()
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		user, password, _ := r.BasicAuth()
		write(t, w, strings.Join([]string{r.Header.Get("Authorization"), user, password, r.Header.Get("X-Key"), r.RequestURI, r.URL.Query().Get("k")}, " "))
	})
	s := open(t, httpsink.Config{
		URL:     strings.Replace(url, "://", "://app:s3cr%2Fet1@", 1) + "/?k=s3cr%20et2",
		Headers: map[string]string{"X-Key": "s3cret3"},
	})
	bearer := open(t, httpsink.Config{URL: url, Headers: map[string]string{"Authorization": "Bearer s3cret4"}})
	unreachable := open(t, httpsink.Config{URL: "http://app:s3cret5@127.0.0.1:1/?k=s3cret6"})
	for _, s := range []*httpsink.Sink{s, bearer, unreachable} {
		err := s.Send(testContext(t), batch("a"))
		expectOutage(t, err)
		if strings.Contains(err.Error(), "s3cr") || strings.Contains(err.Error(), "YXBwO") {
			t.Errorf("a secret shows in %v", err)
		}
	}
	if err := unreachable.Check(testContext(t)); err == nil || strings.Contains(err.Error(), "s3cr") {
		t.Errorf("Check: %v", err)
	}
}

func TestSend_TruncatedResponse(t *testing.T) {
	t.Parallel()
	var status atomic.Int64
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		w.WriteHeader(int(status.Load()))
		write(t, w, "half of it")
	})
	s := open(t, httpsink.Config{URL: url})
	status.Store(200)
	testkit.NoError(t, s.Send(testContext(t), batch("a")))
	status.Store(400)
	if err := s.Send(testContext(t), batch("a")); !errors.Is(err, sink.ErrPermanent) || !strings.Contains(err.Error(), "half of it") {
		t.Errorf("got %v, want a rejection", err)
	}
}

// TestSend_EndlessResponse expects the connection to be closed.
func TestSend_EndlessResponse(t *testing.T) {
	t.Parallel()
	hungUp := make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := io.WriteString(w, strings.Repeat("x", 1000)); err != nil {
				close(hungUp)
				return
			}
		}
	})
	testkit.NoError(t, open(t, httpsink.Config{URL: url}).Send(testContext(t), batch("a")))
	select {
	case <-hungUp:
	case <-testContext(t).Done():
		t.Error("the connection is still open")
	}
}

// TestSend_LostConnection has a server that closes a connection when it has read the second request. The sink must not send that
// request again by itself, outside of the rate limit: it is an outage, which is logged and tried again.
func TestSend_LostConnection(t *testing.T) {
	t.Parallel()
	for name, header := range map[string]string{"group_id": "", "configured": "Idempotency-Key", "X": "X-Idempotency-Key"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int64
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if requests.Add(1); header != "" && r.Header.Get(header) != "mine" || r.Header.Get("Idempotency-Key") == "" {
					t.Errorf("got the header %v", r.Header)
				}
				if requests.Load() == 2 {
					panic(http.ErrAbortHandler)
				}
			})
			config := httpsink.Config{URL: url, Headers: map[string]string{}}
			if header != "" {
				config.Headers[header] = "mine"
			}
			s := open(t, config)
			testkit.NoError(t, s.Send(testContext(t), batch("a")))
			expectMaybePoison(t, s.Send(testContext(t), batch("a")), true)
			testkit.NoError(t, s.Send(testContext(t), batch("a")))
			if n := requests.Load(); n != 3 {
				t.Errorf("%d requests were made; want 3", n)
			}
		})
	}
}

// TestSend_EchoedRequest has a server that sends the request back: net/http quotes it in its error.
func TestSend_EchoedRequest(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		request := make([]byte, 4096)
		n, err := conn.Read(request)
		if err == nil {
			_, key, _ := strings.Cut(string(request[:n]), "X-Key")
			key, _, _ = strings.Cut(key, "\r\n")
			_, err = conn.Write([]byte("X-Key" + key + "\r\n\r\n"))
		}
		if err := errors.Join(err, conn.Close()); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { testkit.NoError(t, listener.Close()); <-served })
	s := open(t, httpsink.Config{URL: "http://" + listener.Addr().String(), Headers: map[string]string{"X-Key": "s3cret"}})
	err = s.Send(testContext(t), batch("a"))
	expectOutage(t, err)
	if text := err.Error(); !strings.Contains(text, "***") || strings.Contains(text, "s3cret") {
		t.Errorf("got %q", text)
	}
}

// TestSend_ReusesConnections has responses with long bodies.
func TestSend_ReusesConnections(t *testing.T) {
	t.Parallel()
	var opened atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		write(t, w, strings.Repeat("x", 20_000))
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	s := open(t, httpsink.Config{URL: server.URL})
	for range 10 {
		if err := s.Send(testContext(t), batch("a")); !errors.Is(err, sink.ErrPermanent) {
			t.Fatalf("got %v, want a rejection", err)
		}
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("%d connections were opened, want 1", n)
	}
}

// TestSend_UnavailableAddress expects an outage of one address if the URL is a template and the server
// responds. Otherwise it is an outage of the sink.
func TestSend_UnavailableAddress(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/busy" {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if r.URL.Path == "/broken" {
			http.Error(w, "", http.StatusInternalServerError)
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(server.Close)
	send := func(url, topic string) error {
		return open(t, httpsink.Config{URL: url}).Send(testContext(t), batch(topic, topic))
	}
	var some *sink.BatchError
	err := send(server.URL+"/{topic}", "missing")
	if !errors.Is(err, sink.ErrUnavailable) || !errors.As(err, &some) || len(some.Events) != 2 || !errors.Is(some.Events[1].Err, sink.ErrUnavailable) {
		t.Errorf("404 at one of many addresses: %v", err)
	}
	err = send(server.URL+"/{topic}", "broken")
	if !errors.Is(err, sink.ErrMaybePoison) || !errors.As(err, &some) || !errors.Is(some.Events[1].Err, sink.ErrMaybePoison) {
		t.Errorf("500 at one of many addresses: %v", err)
	}
	for name, err := range map[string]error{
		"the only address": send(server.URL+"/missing", "x"),
		"no server":        send("http://127.0.0.1:1/{topic}", "x"),
		"Retry-After":      send(server.URL+"/{topic}", "busy"),
	} {
		if !errors.Is(err, sink.ErrUnavailable) || errors.As(err, &some) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCheck_SendsNothing expects connections over HTTP/1.1 and HTTP/2 without a request.
func TestCheck_SendsNothing(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("got %s %s", r.Method, r.Proto) }))
		var connections atomic.Int32
		server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				connections.Add(1)
			}
		}
		if server.EnableHTTP2 = secure; secure {
			server.StartTLS()
		} else {
			server.Start()
		}
		s := open(t, httpsink.Config{URL: server.URL, TLS: sink.TLS{InsecureSkipVerify: true}})
		for range 3 {
			testkit.NoError(t, s.Check(testContext(t)))
		}
		testkit.Eventually(t, func() error {
			if n := connections.Load(); n != 3 {
				return fmt.Errorf("%d connections were made; want 3", n)
			}
			return nil
		})
		server.Close()
	}
}
