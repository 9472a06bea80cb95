package httpsink

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// A worker measures the time of the request without the time that the request waited.
func TestAcquire_IsNotTheServersTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Config{
		"rate":          {Rate: sink.Rate{Requests: 1, Per: time.Minute}},
		"max_in_flight": {MaxInFlight: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const response = 3 * time.Second
				s, done := newBubbleSink(t, c, func(http.ResponseWriter, *http.Request) { <-time.After(response) })
				defer done()
				w := delivery.NewWorker(s, settles{}, delivery.Config{
					MaxAttempts: 1, Backoff: delivery.Backoff{Initial: time.Second, Max: time.Second, Multiplier: 1}, SendTimeout: 5 * time.Minute,
					Observer: noObserver{}, Log: slog.New(slog.DiscardHandler),
				})
				began, all := time.Now(), make(chan delivery.Report)
				for range 2 {
					go func() {
						d, err := w.Work(t.Context(), t.Context(), &buffer.Lease{Batch: *oneEvent(), UnfinishedLeases: 1}, nil, nil)
						if err != nil || d.Answer != delivery.Accepted {
							t.Error(err, d.Answer)
						}
						all <- d
					}()
				}
				for range 2 {
					if d := <-all; d.Sent != response {
						t.Errorf("a Send took %v, want %v", d.Sent, response)
					}
				}
				if took := time.Since(began); took < 2*response {
					t.Errorf("neither waited: both were over after %v", took)
				}
			})
		})
	}
}

// settles accepts all outcomes.
type settles struct{}

func (settles) Settle(context.Context, *buffer.Lease, []buffer.Outcome) error { return nil }
func (settles) MarkDelivered(context.Context, *buffer.Lease, []int64) error   { return nil }

type noObserver struct{}

func (noObserver) Sent(*buffer.Lease, time.Duration)                            {}
func (noObserver) Settled(*buffer.Lease, []buffer.Outcome, bool, time.Duration) {}
func (noObserver) Recovered(string)                                             {}
func (noObserver) Accepts()                                                     {}
func (noObserver) Hanging(int)                                                  {}
