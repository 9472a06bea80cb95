package redissink

import (
	"context"
	"fmt"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Fence implements sink.Fencer with the markers of the batch's streams or asynq queues. The
// other modes have no markers: Fence reports that nothing was delivered.
func (s *Sink) Fence(ctx context.Context, b *buffer.Batch) (delivered bool, err error) {
	if !s.cfg.Mode.hasMarkers() {
		return false, nil
	}
	groups, rejected := s.address.GroupByAddress(b)
	delivered = len(rejected) == 0
	for _, g := range groups {
		marker, err := s.markerPrefix(g.Address)
		if err != nil { // no event can be sent there
			delivered = false
			continue
		}
		keys := []string{marker + b.GroupID.String()}
		for _, origin := range b.Origins {
			keys = append(keys, marker+origin.String())
		}
		server, err := s.servers.MasterForKey(ctx, keys[0])
		if err != nil {
			return false, s.secret.redact(sink.Unavailable(fmt.Errorf("redis %s %q: %w", s.cfg.Mode, g.Address, err)))
		}
		present, err := fenceScript.Run(ctx, server, keys, s.cfg.DedupeWindow.Milliseconds(), s.markerValue(b, g)).Int()
		if err != nil {
			return false, s.secret.redact(sink.Unavailable(fmt.Errorf("redis %s %q: fencing a group_id: %w", s.cfg.Mode, g.Address, err)))
		}
		delivered = delivered && present == 1
	}
	return delivered, nil
}
