package redissink

import (
	"context"
	"fmt"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Fence implements sink.Fencer, by the markers of the batch's streams, or queues of
// asynq's. The others remember nothing: nothing is known to have arrived there.
func (s *Sink) Fence(ctx context.Context, b *buffer.Batch) (delivered bool, err error) {
	if !s.cfg.Mode.remembers() {
		return false, nil
	}
	groups, wrong := s.address.GroupByAddress(b)
	delivered = len(wrong) == 0
	for _, g := range groups {
		marker, err := s.markers(g.Address)
		if err != nil { // nothing is ever sent there
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
		there, err := fenceScript.Run(ctx, server, keys, s.cfg.DedupeWindow.Milliseconds(), s.proof(b, g)).Int()
		if err != nil {
			return false, s.secret.redact(sink.Unavailable(fmt.Errorf("redis %s %q: giving a group_id up: %w", s.cfg.Mode, g.Address, err)))
		}
		delivered = delivered && there == 1
	}
	return delivered, nil
}
