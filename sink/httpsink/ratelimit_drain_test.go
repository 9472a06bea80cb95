package httpsink

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/sink"
)

// TestAcquire_Draining expects waiting batches to be released at once, and a request that has begun to finish.
func TestAcquire_Draining(t *testing.T) {
	t.Parallel()
	const slow = 20 * time.Second
	for name, c := range map[string]struct {
		config Config
		first  bool // a request is under way
	}{
		"rate":          {Config{Rate: sink.Rate{Requests: 1, Per: time.Minute}}, true},
		"shared rate":   {Config{Rate: sink.Rate{Requests: 1, Per: time.Minute}, Shared: farAhead{}, Pipeline: "orders"}, false},
		"bucket":        {Config{Rate: sink.Rate{Requests: 1, Per: time.Minute}, Shared: mute{}, Pipeline: "orders"}, false},
		"max_in_flight": {Config{MaxInFlight: 1}, true},
		"pause":         {Config{}, false},
		"token":         {Config{OAuth2: OAuth2{TokenURL: "http://auth.example/token", ClientID: "relay", ClientSecret: "s3cret"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var came arrivals
				s, done := newBubbleSink(t, c.config, func(_ http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/token" {
						if err := r.ParseForm(); err != nil { // a client that hangs up is noticed when the body was read
							t.Error(err)
						}
						<-r.Context().Done()
						return
					}
					came.note()
					<-time.After(slow)
				})
				defer done()
				if name == "pause" {
					s.limiter.pause(maxPause, "the server asked for a pause")
				}
				drain, begin := context.WithCancel(t.Context())
				began, want := time.Now(), 0
				var group sync.WaitGroup
				if c.first {
					want = 1
					group.Go(func() {
						if err := s.Send(t.Context(), oneEvent()); err != nil || time.Since(began) != slow {
							t.Errorf("the request that had begun ended after %v with %v", time.Since(began), err)
						}
					})
					synctest.Wait()
				}
				for range 3 {
					group.Go(func() {
						p, err := s.Prepare(t.Context(), oneEvent())
						if err != nil {
							t.Error(err)
							return
						}
						if err := p.Acquire(drain); err == nil || time.Since(began) != time.Second {
							t.Errorf("after %v: %v, want an error after a second", time.Since(began), err)
						}
					})
				}
				<-time.After(time.Second)
				begin()
				group.Wait()
				if n := len(came.list()); n != want {
					t.Errorf("%d requests, want %d", n, want)
				}
			})
		})
	}
}

// farAhead is a bucket that is used up, mute one whose database never responds.
type (
	farAhead struct{}
	mute     struct{}
)

func (farAhead) TakeToken(context.Context, string, int, time.Duration) (time.Duration, error) {
	return time.Minute, nil
}

func (mute) TakeToken(ctx context.Context, _ string, _ int, _ time.Duration) (time.Duration, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}
