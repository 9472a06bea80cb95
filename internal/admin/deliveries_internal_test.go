package admin

import (
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestDeliveries: a relay that stopped counts with the part of its last minute that lies within the last minute.
func TestDeliveries(t *testing.T) {
	t.Parallel()
	relay := func(seen time.Duration, stopped bool) buffer.Relay {
		return buffer.Relay{RelayReport: buffer.RelayReport{LastMinute: 600, LastDelivery: seen, Stopped: stopped}, Seen: seen}
	}
	for _, c := range []struct {
		relay buffer.Relay
		want  int64
	}{
		{relay(3*time.Second, false), 600},
		{relay(15*time.Second, true), 450},
		{relay(40*time.Second, false), 200}, // it was killed
		{relay(time.Minute, true), 0},
		{relay(time.Hour, true), 0},
	} {
		if got := deliveries([]buffer.Relay{c.relay}, func(string) bool { return true }); got.LastMinute != c.want {
			t.Errorf("%v ago, stopped %v: %d in the last minute, want %d", c.relay.Seen, c.relay.Stopped, got.LastMinute, c.want)
		}
	}
}
