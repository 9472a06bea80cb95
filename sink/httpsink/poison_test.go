package httpsink_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// soon is far less than what a driver waits without a deadline.
const soon = 10 * time.Second

// expectMaybePoison expects an outage, and whether the batch may be its cause.
func expectMaybePoison(t *testing.T, err error, want bool) {
	t.Helper()
	expectOutage(t, err)
	if errors.Is(err, sink.ErrMaybePoison) != want {
		t.Errorf("got %v; that the batch may be its cause is %v, want %v", err, !want, want)
	}
}

// neverRespond starts a server that never responds. It sends a value for each request.
func neverRespond(t *testing.T) (url string, requests <-chan struct{}) {
	t.Helper()
	release, came := make(chan struct{}), make(chan struct{}, 10)
	url = serve(t, func(_ http.ResponseWriter, r *http.Request) {
		came <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	t.Cleanup(func() { close(release) })
	return url, came
}

// deadline is a context that expires when the first request has arrived.
type deadline struct {
	context.Context //nolint:containedctx // it is one
	over            chan struct{}
}

func (d deadline) Done() <-chan struct{} { return d.over }

func (d deadline) Err() error {
	select {
	case <-d.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func deadlineAt(t *testing.T, requests <-chan struct{}) context.Context {
	t.Helper()
	d := deadline{testContext(t), make(chan struct{})}
	go func() { <-requests; close(d.over) }()
	return d
}

func TestMaybePoison_Timeout(t *testing.T) {
	t.Parallel()
	slow, _ := neverRespond(t)
	expectOutage(t, open(t, httpsink.Config{URL: slow, Timeout: 20 * time.Millisecond}).Send(testContext(t), batch("a")))
	url, requests := neverRespond(t)
	err := open(t, httpsink.Config{URL: url}).Send(deadlineAt(t, requests), batch("a"))
	expectMaybePoison(t, err, true)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want one that wraps context.DeadlineExceeded", err)
	}
	if text := err.Error(); !strings.Contains(text, "no answer in time (see sink.timeout)") || strings.Contains(text, "context") {
		t.Errorf("a time-out says %q", text)
	}
}

// TestMaybePoison_TimeoutWhileWriting has a body that does not fit into the buffers of the connection.
func TestMaybePoison_TimeoutWhileWriting(t *testing.T) {
	t.Parallel()
	url, requests := neverRespond(t)
	b := batch("a")
	b.Events[0].Payload = []byte(`"` + strings.Repeat("x", 32<<20) + `"`)
	expectMaybePoison(t, open(t, httpsink.Config{URL: url}).Send(deadlineAt(t, requests), b), true)
}

func TestMaybePoison_Cancelled(t *testing.T) {
	t.Parallel()
	url, requests := neverRespond(t)
	ctx, callOff := context.WithCancel(t.Context())
	go func() { <-requests; callOff() }()
	expectMaybePoison(t, open(t, httpsink.Config{URL: url}).Send(ctx, batch("a")), false)
}

func TestMaybePoison_LostConnection(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} { // HTTP/1.1, HTTP/2
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
		server.EnableHTTP2 = secure
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		if secure {
			server.StartTLS()
		} else {
			server.Start()
		}
		t.Cleanup(server.Close)
		expectMaybePoison(t, open(t, httpsink.Config{URL: server.URL, TLS: sink.TLS{InsecureSkipVerify: true}}).Send(testContext(t), batch("a")), true)
	}
}

// TestMaybePoison_NoConnection has addresses without a server, and a server that accepts the connection and
// sends nothing.
func TestMaybePoison_NoConnection(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, silent.Close()) })
	untrusted := httptest.NewUnstartedServer(http.NotFoundHandler())
	untrusted.Config.ErrorLog = log.New(io.Discard, "", 0)
	untrusted.StartTLS()
	t.Cleanup(untrusted.Close)
	for _, url := range []string{"http://127.0.0.1:1", "https://" + silent.Addr().String(), untrusted.URL, "http://no-such-host.invalid"} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		began := time.Now()
		expectMaybePoison(t, open(t, httpsink.Config{URL: url}).Send(ctx, batch("a")), false)
		cancel()
		if took := time.Since(began); took > soon/2 {
			t.Errorf("%s: it took %v", url, took)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	began := time.Now()
	expectOutage(t, open(t, httpsink.Config{URL: "http://" + silent.Addr().String()}).Send(ctx, batch("a")))
	if took := time.Since(began); took > soon/2 {
		t.Errorf("a silent server: it took %v", took)
	}
}

// TestMaybePoison_ServerGone closes the server behind a request: the second may have been written to the
// old connection, but there is none for the third.
func TestMaybePoison_ServerGone(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s := open(t, httpsink.Config{URL: server.URL})
	testkit.NoError(t, s.Send(testContext(t), batch("a")))
	server.Close()
	expectOutage(t, s.Send(testContext(t), batch("a")))
	expectMaybePoison(t, s.Send(testContext(t), batch("a")), false)
}
