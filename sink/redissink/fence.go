package redissink

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

//go:embed fence.lua
var fenceLua string

var fenceScript = redis.NewScript(fenceLua)

// Fence implements sink.Fencer, by the markers of the batch's streams, or queues of
// asynq's. The others remember nothing: nothing is known to have arrived there.
func (s *Sink) Fence(ctx context.Context, b *outbox.Batch) (delivered bool, err error) {
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
		there, err := fenceScript.Run(ctx, server, keys, s.cfg.DedupeWindow.Milliseconds(), s.sent).Int()
		if err != nil {
			return false, s.secret.redact(sink.Unavailable(fmt.Errorf("redis %s %q: giving a group_id up: %w", s.cfg.Mode, g.Address, err)))
		}
		delivered = delivered && there == 1
	}
	return delivered, nil
}

// markers is what the markers of an address begin with. The error says that nothing can
// be sent there.
func (s *Sink) markers(address string) (string, error) {
	if err := s.checkAddress(address); err != nil {
		return "", err
	}
	if s.cfg.Mode == Asynq {
		return asynqPrefix(address) + "relay:", nil
	}
	return markerPrefix(address)
}
