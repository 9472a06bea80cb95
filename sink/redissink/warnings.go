package redissink

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Warnings implements sink.Warner: it looks for settings, of the servers and of the
// sink, that endanger what this sink promises.
func (s *Sink) Warnings(ctx context.Context) []string {
	var warnings []string
	if within := s.cfg.ResendWithin; s.cfg.Mode.remembers() && s.cfg.DedupeWindow < within {
		warnings = append(warnings, fmt.Sprintf("dedupe_window is %v, but an event may be sent again up to %v after it was first sent, "+
			"and arrive twice; set dedupe_window to %v or more", s.cfg.DedupeWindow, within, within))
	}
	return append(warnings, s.evictions(ctx)...)
}

// evictions tells of servers that drop keys when memory runs out.
func (s *Sink) evictions(ctx context.Context) []string {
	what := "the markers that keep events from arriving twice, or a stream itself"
	switch s.cfg.Mode {
	case List:
		what = "a list with all that is in it"
	case Sidekiq:
		what = "a queue with all that is in it"
	case Asynq:
		what = "the markers that keep events from arriving twice, or a queue with all that is in it"
	case Publish:
		return nil // keeps nothing there
	}
	var mu sync.Mutex
	var warnings []string
	err := s.servers.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		info, err := c.InfoMap(ctx, "memory").Result()
		if err != nil {
			return err
		}
		memory := info["Memory"]
		if policy := memory["maxmemory_policy"]; memory["maxmemory"] != "0" && policy != "noeviction" {
			mu.Lock()
			defer mu.Unlock()
			warnings = append(warnings, fmt.Sprintf("Redis at %s has maxmemory-policy %s: when memory runs out it may drop %s; set it to noeviction",
				c.Options().Addr, policy, what))
		}
		return nil
	})
	if err != nil {
		warnings = append(warnings, fmt.Sprintf("cannot tell what Redis does when memory runs out: %v", s.secret.redact(err)))
	}
	slices.Sort(warnings)
	return warnings
}
