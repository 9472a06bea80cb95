package admin

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/supervisor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	_ pipeline.Observer = (*Observer)(nil)
	_ Health            = (*config.Runtime)(nil)

	_ supervisor.Observer = (*VacuumObserver)(nil)
)

// state is a pipeline whose state the test sets.
type state struct {
	name   string
	status buffer.Status
	err    error // of Status
	ready  error // of Ready
	worst  *buffer.VacuumBlocker
	hangs  chan struct{} // if set, Status waits for it or for its context
	asked  chan struct{} // if set, receives a value for every Status
}

func (s *state) pipeline() Pipeline { return Pipeline{Name: s.name, Health: s, MaxWaiting: 1000} }

func (s *state) Ready() error { return s.ready }

func (s *state) Limits() (batchSize, workers int) { return 1000, 4 }

func (s *state) Worst() (buffer.VacuumBlocker, bool) {
	if s.worst == nil {
		return buffer.VacuumBlocker{}, false
	}
	return *s.worst, true
}

func (s *state) Status(ctx context.Context) (buffer.Status, error) {
	if s.asked != nil {
		s.asked <- struct{}{}
	}
	if s.hangs != nil {
		select {
		case <-s.hangs:
		case <-ctx.Done():
			return buffer.Status{}, ctx.Err()
		}
	}
	return s.status, s.err
}

// unready is an error with a class.
type unready struct{ error }

func (unready) Class() string { return "database" }
func (unready) Kind() string  { return "database" }

var errUnreachable = errors.New("dial tcp 10.0.0.1:5432: no route; was sent s3cret")

func two() []Pipeline {
	return []Pipeline{
		(&state{name: "orders", status: buffer.Status{
			Pending: 1234, OldestPending: 90*time.Second + 123456*time.Microsecond,
			Leased: 1, Waiting: 2, Delivered: 3, Dead: 4, OldestTransaction: 5 * time.Second, Unnotified: 2,
			Suspects: 2, OldestSuspect: 8*time.Minute + 20*time.Second,
		}}).pipeline(),
		(&state{name: "down", err: errUnreachable, ready: unready{errUnreachable}}).pipeline(),
	}
}

// get sends a GET request to the server.
func get(t *testing.T, s *Server, path string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.Host = "127.0.0.1:7070"
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

// batch has n events; the first one has the age, each next one is a second younger.
func batch(n int, oldest time.Duration) *buffer.Lease {
	now := time.Now()
	b := &buffer.Lease{Batch: buffer.Batch{GroupID: uuid.New()}, ClaimedAt: now.Add(7 * time.Hour), ClaimedLocal: now}
	for i := range n {
		b.Events = append(b.Events, outbox.Event{
			ID: int64(i + 1), CreatedAt: b.ClaimedAt.Add(-oldest + time.Duration(i)*time.Second),
		})
	}
	return b
}
