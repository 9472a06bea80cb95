package admin

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/access"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func guard(token string) *access.Guard { return access.New(access.Token{Secret: token}) }

func redactor(text string) string { return strings.ReplaceAll(text, "s3cret", "***") }

func TestStatus(t *testing.T) {
	t.Parallel()
	s := New(two(), NewMetrics("1.2.3"), Config{Redact: redactor})
	w := get(t, s, "/api/status")
	const want = `{
  "pipelines": [
    {
      "name": "orders",
      "pending": 1234,
      "oldest_pending_seconds": 90.123,
      "batches": {
        "leased": 1,
        "waiting": 2,
        "delivered": 3
      },
      "dead": 4,
      "state": "no relay",
      "deliveries": {
        "last_minute": 0
      },
      "relay_problems": [
        "no relay runs. > relay run -c relay.yaml"
      ],
      "suspects": {
        "batches": 2,
        "oldest_seconds": 500
      }
    }
  ],
  "errors": [
    {
      "name": "down",
      "error": "dial tcp 10.0.0.1:5432: no route; was sent ***"
    }
  ]
}
`
	if diff := cmp.Diff(want, w.Body.String()); diff != "" || w.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d %s", w.Code, diff)
	}
	w = get(t, New(two()[:1], NewMetrics("1.2.3"), Config{}), "/api/status")
	if w.Code != http.StatusOK || strings.Contains(w.Body.String(), "errors") {
		t.Errorf("status %d %s", w.Code, w.Body)
	}
	w = get(t, New(nil, NewMetrics("1.2.3"), Config{}), "/api/status")
	if w.Body.String() != "{\n  \"pipelines\": []\n}\n" {
		t.Errorf("without pipelines: %s", w.Body)
	}
}

func TestStatus_DeadLetterHook(t *testing.T) {
	t.Parallel()
	p := (&state{name: "orders", status: buffer.Status{
		Dead: 4, Unnotified: 3, HookWaits: []buffer.Wait{{Batches: 2}, {Error: "503 from s3cret", Batches: 1, Events: 3, First: 2 * time.Second, Last: 2 * time.Second}},
	}}).pipeline()
	p.HasHook = true
	s := New([]Pipeline{p}, NewMetrics("1.2.3"), Config{Redact: redactor})
	const want = `"dead_letter_hook": {
        "unnotified": 3,
        "waits": [
          {
            "error": "503 from ***",
            "batches": 1,
            "events": 3,
            "due_in_seconds": 2,
            "last_due_in_seconds": 2
          }
        ]
      }`
	if body := get(t, s, "/api/status").Body.String(); !strings.Contains(body, want) {
		t.Errorf("got %s", body)
	}
}

func TestStatus_ShowsVacuumBlocker(t *testing.T) {
	t.Parallel()
	s := New([]Pipeline{
		(&state{name: "quiet"}).pipeline(),
		(&state{name: "orders", worst: &buffer.VacuumBlocker{
			Kind: buffer.BlockedByTransaction, PID: 7, Application: "<b>report", User: "bob", Database: "app", State: "idle in transaction",
			Backend: "client backend", Age: 2 * time.Hour, QueryAge: time.Hour, Behind: 1234, Horizon: 9,
		}}).pipeline(),
	}, NewMetrics("1.2.3"), Config{})
	var got struct{ Pipelines []map[string]any }
	if err := json.Unmarshal(get(t, s, "/api/status").Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	const text = `a transaction is open for 2h0m0s (pid 7, user bob, application "<b>report", database app, idle in transaction, ` +
		`its last query began 1h0m0s ago), 1234 transactions behind: vacuum keeps all younger dead rows`
	if diff := cmp.Diff(map[string]any{
		"kind": "transaction", "pid": 7.0, "application": "<b>report", "user": "bob", "database": "app", "state": "idle in transaction",
		"age_seconds": 7200.0, "query_age_seconds": 3600.0, "behind": 1234.0, "text": text,
	}, got.Pipelines[1]["vacuum_blocked_by"]); diff != "" {
		t.Error(diff)
	}
	if blocker, ok := got.Pipelines[0]["vacuum_blocked_by"]; ok {
		t.Errorf("quiet is blocked by %v", blocker)
	}
}

func TestProbes(t *testing.T) {
	t.Parallel()
	s := New(two(), NewMetrics("1.2.3"), Config{Guard: guard("t0ken"), Redact: redactor})
	if w := get(t, s, "/livez"); w.Code != http.StatusOK {
		t.Errorf("/livez answers %d", w.Code)
	}
	const (
		open = `{"ready":false,"pipelines":[{"name":"orders","ready":true},{"name":"down","ready":false,"class":"database"}]}`
		full = `{"ready":false,"pipelines":[{"name":"orders","ready":true},{"name":"down","ready":false,"class":"database",` +
			`"reason":"dial tcp 10.0.0.1:5432: no route; was sent ***"}]}`
	)
	for _, c := range []struct{ name, configured, given, want string }{
		{"without the token", "t0ken", "", open},
		{"with a wrong token", "t0ken", "t0kem", open},
		{"with the token", "t0ken", "t0ken", full},
		{"no token is configured", "", "", open},
		{"no token is configured, one is given", "", "t0ken", open},
	} {
		s := New(two(), NewMetrics("1.2.3"), Config{Guard: guard(c.configured), Redact: redactor})
		w := get(t, s, "/readyz", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+c.given) })
		var body bytes.Buffer
		if err := json.Compact(&body, w.Body.Bytes()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, body.String()); diff != "" || w.Code != http.StatusServiceUnavailable {
			t.Errorf("%s: /readyz %d %s", c.name, w.Code, diff)
		}
	}
	unknown := New([]Pipeline{(&state{name: "odd", ready: errUnreachable}).pipeline()}, NewMetrics("1.2.3"), Config{})
	if w := get(t, unknown, "/readyz"); !strings.Contains(w.Body.String(), `"class": "stalled"`) {
		t.Errorf("an error without a class: %s", w.Body)
	}
	if w := get(t, New(two()[:1], NewMetrics("1.2.3"), Config{}), "/readyz"); w.Code != http.StatusOK {
		t.Errorf("/readyz answers %d", w.Code)
	}
}

func TestServer_Paths(t *testing.T) {
	t.Parallel()
	s := New(two(), NewMetrics("1.2.3"), Config{})
	if w := get(t, s, "/nothing"); w.Code != http.StatusNotFound {
		t.Errorf("/nothing answers %d", w.Code)
	}
	for _, path := range []string{"/livez", "/readyz", "/metrics", "/api/status"} {
		if w := get(t, s, path, func(r *http.Request) { r.Method = http.MethodPost }); w.Code != http.StatusMethodNotAllowed {
			t.Errorf("POST %s answers %d", path, w.Code)
		}
	}
}

func TestAccess_RequiresToken(t *testing.T) {
	t.Parallel()
	s := New(two()[:1], NewMetrics("1.2.3"), Config{Guard: guard("t0ken")})
	basic := func(login string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(login)) }
	for authorization, lets := range map[string]bool{
		"": false, "Bearer": false, "Bearer ": false, "Bearer t0ke": false, "Bearer t0ken2": false, "t0ken": false,
		"Bearer t0ken": true, "bearer t0ken": true, "Basic t0ken": false,
		basic("t0ken"): false, basic("t0ken:"): false, basic(":t0ken"): true, basic("anybody:t0ken"): true,
	} {
		for _, path := range []string{"/api/status"} {
			w := get(t, s, path, func(r *http.Request) { r.Header.Set("Authorization", authorization) })
			if got := w.Code == http.StatusOK; got != lets || !lets && w.Code != http.StatusUnauthorized {
				t.Errorf("%s with %q answers %d", path, authorization, w.Code)
			}
			if !lets && (strings.Contains(w.Body.String(), "orders") || !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Basic ")) {
				t.Errorf("%s with %q answers %v %s", path, authorization, w.Header(), w.Body)
			}
		}
	}
	for _, path := range []string{"/livez", "/readyz", "/metrics"} {
		if w := get(t, s, path); w.Code != http.StatusOK {
			t.Errorf("%s answers %d without the token", path, w.Code)
		}
	}
}

func TestSnapshots_DatabaseHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hanging := &state{name: "hangs", hangs: make(chan struct{}), asked: make(chan struct{}, 10)}
		s := New([]Pipeline{hanging.pipeline(), two()[0]}, NewMetrics("1.2.3"), Config{})
		var wait sync.WaitGroup
		began := time.Now()
		for range 5 {
			wait.Go(func() {
				report := s.Report(t.Context())
				if len(report.Pipelines) != 1 || len(report.Errors) != 1 || !strings.Contains(report.Errors[0].Error, "did not respond within 3s") {
					t.Errorf("the report is %+v", report)
				}
			})
		}
		wait.Wait()
		if took := time.Since(began); took > statusTimeout {
			t.Errorf("it took %v", took)
		}
		if n := len(hanging.asked); n != 1 {
			t.Errorf("the database was asked %d times", n)
		}
		close(hanging.hangs)
		<-time.After(maxStatusAge + 1)
		if report := s.Report(t.Context()); len(report.Pipelines) != 2 {
			t.Errorf("the report is %+v", report)
		}
	})
}

func TestSnapshot_ClientCancels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &state{name: "p", hangs: make(chan struct{}), asked: make(chan struct{}, 10)}
		s := newSnapshot(p.pipeline())
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-p.asked; cancel() }()
		if _, _, err := s.read(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("the answer is %v", err)
		}
		close(p.hangs)
		if _, _, err := s.read(t.Context()); err != nil {
			t.Errorf("the answer is %v", err)
		}
	})
}

func TestServer_Run(t *testing.T) {
	t.Parallel()
	l, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), l.Addr().String()); err == nil || !strings.Contains(err.Error(), "is in use") {
		t.Errorf("the error is %v", err)
	}
	if _, err := Listen(t.Context(), "nowhere.invalid:1"); err == nil || !strings.Contains(err.Error(), "listening on admin.listen") {
		t.Errorf("the error is %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- New(two(), NewMetrics("1.2.3"), Config{}).Run(ctx, l) }()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String()+"/livez", nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil || response.Body.Close() != nil || response.StatusCode != http.StatusOK {
		t.Errorf("/livez answers %d, %v", response.StatusCode, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestFormat(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := Count(n); got != want {
			t.Errorf("%d is written %s", n, got)
		}
	}
	for n, want := range map[int64]string{100_000: "100,000", 100_001: "~100,001"} {
		if got := Pending(n); got != want {
			t.Errorf("%d is written %s", n, got)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0ms", 850 * time.Millisecond: "850ms", time.Second: "1s", 12345 * time.Millisecond: "12.3s", 59999 * time.Millisecond: "59.9s",
		time.Minute: "1m 0s", 3*time.Minute + 20*time.Second: "3m 20s", 5*time.Hour + time.Minute: "5h 1m", 52 * time.Hour: "2d 4h",
	} {
		if got := Age(d); got != want {
			t.Errorf("%d is written %s", d, got)
		}
	}
}
