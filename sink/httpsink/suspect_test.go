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

	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// soon is long, but far from what a driver waits without a deadline.
const soon = 10 * time.Second

// suspect expects an outage that may be the batch's doing, or one that is not.
func suspect(t *testing.T, err error, want bool) {
	t.Helper()
	outage(t, err)
	if errors.Is(err, sink.ErrMaybePoison) != want {
		t.Errorf("got %v; that it is blamed on the batch is %v, want %v", err, !want, want)
	}
}

// hanging answers no request, and tells of each one.
func hanging(t *testing.T) (url string, requests <-chan struct{}) {
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

// deadline is a context whose time is over when the first request has come.
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
	d := deadline{within(t), make(chan struct{})}
	go func() { <-requests; close(d.over) }()
	return d
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	slow, _ := hanging(t)
	outage(t, open(t, httpsink.Config{URL: slow, Timeout: 20 * time.Millisecond}).Send(within(t), batch("a")))
	url, requests := hanging(t)
	err := open(t, httpsink.Config{URL: url}).Send(deadlineAt(t, requests), batch("a"))
	suspect(t, err, true)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want one that wraps context.DeadlineExceeded", err)
	}
}

// TestTimeoutWithinTheRequest: the body is larger than what the connection takes
// without a reader.
func TestTimeoutWithinTheRequest(t *testing.T) {
	t.Parallel()
	url, requests := hanging(t)
	b := batch("a")
	b.Events[0].Payload = []byte(`"` + strings.Repeat("x", 32<<20) + `"`)
	suspect(t, open(t, httpsink.Config{URL: url}).Send(deadlineAt(t, requests), b), true)
}

func TestCalledOffIsNotTheBatch(t *testing.T) {
	t.Parallel()
	url, requests := hanging(t)
	ctx, callOff := context.WithCancel(t.Context())
	go func() { <-requests; callOff() }()
	suspect(t, open(t, httpsink.Config{URL: url}).Send(ctx, batch("a")), false)
}

func TestConnectionThatIsCut(t *testing.T) {
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
		suspect(t, open(t, httpsink.Config{URL: server.URL, TLS: httpsink.TLS{InsecureSkipVerify: true}}).Send(within(t), batch("a")), true)
	}
}

// TestNoConnectionIsNotTheBatch: nobody is there, or somebody who takes the
// connection and never says a word; Send ends with its deadline.
func TestNoConnectionIsNotTheBatch(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	t.Cleanup(func() { ok(t, silent.Close()) })
	untrusted := httptest.NewUnstartedServer(http.NotFoundHandler())
	untrusted.Config.ErrorLog = log.New(io.Discard, "", 0)
	untrusted.StartTLS()
	t.Cleanup(untrusted.Close)
	for _, url := range []string{"http://127.0.0.1:1", "https://" + silent.Addr().String(), untrusted.URL, "http://no-such-host.invalid"} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		began := time.Now()
		suspect(t, open(t, httpsink.Config{URL: url}).Send(ctx, batch("a")), false)
		cancel()
		if took := time.Since(began); took > soon/2 {
			t.Errorf("%s: it took %v", url, took)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	began := time.Now()
	outage(t, open(t, httpsink.Config{URL: "http://" + silent.Addr().String()}).Send(ctx, batch("a")))
	if took := time.Since(began); took > soon/2 {
		t.Errorf("a silent server: it took %v", took)
	}
}

// TestServerGoneBetweenRequests: the connection is left from before, and the request
// may have been written there; that there is no other one is what counts.
func TestServerGoneBetweenRequests(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s := open(t, httpsink.Config{URL: server.URL})
	ok(t, s.Send(within(t), batch("a")))
	server.Close()
	suspect(t, s.Send(within(t), batch("a")), false)
}
