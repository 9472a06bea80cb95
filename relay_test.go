package relay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/outboxrelay/relay"
	"github.com/outboxrelay/relay/internal/testkit"
)

func TestOpen_Errors(t *testing.T) {
	t.Parallel()
	t.Run("NoFile", func(t *testing.T) {
		_, err := relay.Open(filepath.Join(t.TempDir(), "relay.yaml"), relay.Options{})
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("Mistakes", func(t *testing.T) {
		_, err := relay.Open("relay.yaml", relay.Options{Text: []byte("pipelines:\n  - name: a\n    lease: 1\n    source: {url: \"sqlite:///x.db\"}\n")})
		want := "relay.yaml:2:5: sink is missing; expected sink with a url such as redis://host:6379/0, or sinks for several\n" +
			"relay.yaml:3:12: lease is the number 1; expected a duration from 1s to 24h (like 30s) (write 1s)"
		if err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
	})
	t.Run("OfTheDriver", func(t *testing.T) {
		_, err := relay.Open("relay.yaml", relay.Options{Text: []byte("pipelines:\n  - name: a\n    source: {url: \"postgres://a:s3cret@h/d?pool_max_conns=x\"}\n    sink: {url: \"stdout:\"}\n")})
		if err == nil || !strings.HasPrefix(err.Error(), "relay.yaml:3:") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("got %v", err)
		}
	})
}

// open opens a pipeline from a new SQLite file, with an event in it, to a URL.
func open(t *testing.T, sink, shutdownTimeout string, o relay.Options) *relay.Relay {
	t.Helper()
	file := filepath.Join(t.TempDir(), "app.db")
	o.Text = []byte("shutdown_timeout: " + shutdownTimeout + "\npipelines:\n  - name: orders\n    source: {url: \"sqlite://" + file + "\"}\n    sink: {url: \"" + sink + "\"}\n")
	r, err := relay.Open("relay.yaml", o)
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, r.Close()) })
	applied, err := r.Migrate(t.Context())
	testkit.NoError(t, err)
	if len(applied) == 0 || !strings.HasPrefix(applied[0], "orders: 0") {
		t.Errorf("applied %q", applied)
	}
	insert(t.Context(), file, `{"order": 1}`)
	return r
}

// start starts Run and returns a function that ends it.
func start(t *testing.T, r *relay.Relay) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() error {
		cancel()
		return testkit.Receive(t, "the end of Run", ended)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	var out, log testkit.Output
	r := open(t, "stdout:", "2m", relay.Options{Stdout: &out, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err := r.Ready(); err == nil || !strings.HasPrefix(err.Error(), "pipeline orders: ") {
		t.Errorf("Ready before Run: %v", err)
	}
	stop := start(t, r)
	testkit.Eventually(t, func() error {
		if !strings.Contains(out.String(), `"payload":{"order": 1}`) {
			return errors.New("nothing was delivered")
		}
		return r.Ready()
	})
	response := httptest.NewRecorder()
	r.Handler().ServeHTTP(response, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/readyz", nil))
	testkit.Equal(t, "/readyz", response.Code, http.StatusOK)
	if err := r.Run(t.Context()); !errors.Is(err, relay.ErrStarted) {
		t.Errorf("a second Run: %v", err)
	}
	testkit.NoError(t, stop())
	testkit.NoError(t, r.Close())
	if err := r.Run(t.Context()); !errors.Is(err, relay.ErrClosed) {
		t.Errorf("Run after Close: %v", err)
	}
	if text := log.String(); !strings.Contains(text, `msg="finishing batches in flight"`) || !strings.Contains(text, "pipeline=orders") {
		t.Errorf("the log is %s", text)
	}
}

// The spans of batches go to the program's provider, and nowhere without one.
func TestRun_TracerProvider(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	stop := start(t, open(t, "stdout:", "2m", relay.Options{Stdout: io.Discard, TracerProvider: provider}))
	testkit.Eventually(t, func() error {
		var names []string
		for _, s := range spans.Ended() {
			names = append(names, s.Name())
		}
		if got := strings.Join(names, ", "); got != "claim, send orders, settle, relay orders" {
			return fmt.Errorf("the spans are %s", got)
		}
		return nil
	})
	testkit.NoError(t, stop())
	testkit.NoError(t, provider.Shutdown(t.Context()))
}

// TestRun_ShutdownTimeout: a Send that does not end by itself is cut off. Close waits for Run.
func TestRun_ShutdownTimeout(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body) // only then the server notices that the client is gone
		asked <- struct{}{}
		<-req.Context().Done()
	}))
	defer server.Close()
	r := open(t, server.URL+"/in", "100ms", relay.Options{Log: slog.New(slog.DiscardHandler)})
	stop := start(t, r)
	testkit.Receive(t, "a request", asked)
	if err := stop(); !errors.Is(err, relay.ErrShutdownTimeout) {
		t.Errorf("got %v", err)
	}
}

// TestLog_Secrets: what a server echoes is masked before the program's own handler sees it, at each level of attributes.
func TestLog_Secrets(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		http.Error(w, "not you, "+req.Header.Get("Authorization"), http.StatusUnauthorized)
	}))
	defer server.Close()
	var log testkit.Output
	r := open(t, strings.Replace(server.URL, "//", "//user:pa55w0rd@", 1), "2m", relay.Options{
		Log: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})).With("service", "shop").WithGroup("relay"),
	})
	stop := start(t, r)
	testkit.Eventually(t, func() error {
		if !strings.Contains(log.String(), "401") {
			return errors.New("no outage was logged")
		}
		return nil
	})
	testkit.NoError(t, stop())
	if text := log.String(); strings.Contains(text, "pa55w0rd") || strings.Contains(text, "dXNlcjpwYTU1dzByZA") || !bytes.Contains([]byte(text), []byte(`"service":"shop"`)) {
		t.Errorf("the log is %s", text)
	}
}
