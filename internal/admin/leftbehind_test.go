package admin

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

type fakeLeaver struct {
	buffer.Inspector
	events int64
	err    error
}

func (l fakeLeaver) Check(context.Context) error               { return nil }
func (l fakeLeaver) LeftBehind(context.Context) (int64, error) { return l.events, l.err }

func TestMetrics_LeftBehind(t *testing.T) {
	t.Parallel()
	pipelines := two()
	pipelines[0].Inspector, pipelines[1].Inspector = fakeLeaver{events: 7}, fakeLeaver{err: errors.New("no route to host")}
	got := scrape(t, New(pipelines, NewMetrics(""), Config{}))
	if n := got["relay_events_left_behind{pipeline=orders}"]; n != 7 {
		t.Errorf("%v events left behind, want 7", n)
	}
	if n, ok := got["relay_events_left_behind{pipeline=down}"]; !ok || !math.IsNaN(n) {
		t.Errorf("%v events left behind while the database is away, want NaN", n)
	}
}
