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

// Fence implements sink.Fencer, by the markers of the batch's streams. Lists and
// channels remember nothing: nothing is known to have arrived there.
func (s *Sink) Fence(ctx context.Context, b *outbox.Batch) (delivered bool, err error) {
	if s.cfg.Mode != Stream {
		return false, nil
	}
	groups, wrong := s.address.GroupByAddress(b)
	delivered = len(wrong) == 0
	for _, g := range groups {
		marker, err := markerPrefix(g.Address)
		if err != nil { // nothing is ever sent there
			delivered = false
			continue
		}
		keys := []string{marker + b.GroupID.String()}
		for _, origin := range b.Origins {
			keys = append(keys, marker+origin.String())
		}
		server, err := s.servers.MasterForKey(ctx, g.Address)
		if err != nil {
			return false, s.secret.redact(sink.Unavailable(fmt.Errorf("redis stream %q: %w", g.Address, err)))
		}
		there, err := fenceScript.Run(ctx, server, keys, s.cfg.DedupeWindow.Milliseconds(), s.sent).Int()
		if err != nil {
			return false, s.secret.redact(sink.Unavailable(fmt.Errorf("redis stream %q: giving a group_id up: %w", g.Address, err)))
		}
		delivered = delivered && there == 1
	}
	return delivered, nil
}
