package redissink

import (
	"context"
	"errors"
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
	return append(warnings, s.ofServers(ctx)...)
}

// ofServers asks every master for what warnings come of its settings.
func (s *Sink) ofServers(ctx context.Context) []string {
	if s.cfg.Mode == Publish {
		return nil // keeps nothing there
	}
	var mu sync.Mutex
	var warnings []string
	err := s.servers.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		evicts, errMemory := s.evicts(ctx, c)
		cutOff, errFile := fileMayBeCutOff(ctx, c)
		mu.Lock()
		defer mu.Unlock()
		for _, warning := range []string{evicts, cutOff} {
			if warning != "" {
				warnings = append(warnings, fmt.Sprintf("Redis at %s %s", c.Options().Addr, warning))
			}
		}
		return errors.Join(errMemory, errFile)
	})
	if err != nil {
		warnings = append(warnings, fmt.Sprintf("cannot tell what Redis does when memory runs out, or when it is killed: %v", s.secret.redact(err)))
	}
	slices.Sort(warnings)
	return warnings
}

// evicts tells of a server that drops keys when memory runs out.
func (s *Sink) evicts(ctx context.Context, c *redis.Client) (string, error) {
	info, err := c.InfoMap(ctx, "memory").Result()
	if err != nil {
		return "", err
	}
	memory := info["Memory"]
	policy := memory["maxmemory_policy"]
	if memory["maxmemory"] == "0" || policy == "noeviction" {
		return "", nil
	}
	what := "the markers that keep events from arriving twice, or a stream itself"
	switch s.cfg.Mode {
	case List:
		what = "a list with all that is in it"
	case Sidekiq:
		what = "a queue with all that is in it"
	case Asynq:
		what = "the markers that keep events from arriving twice, or a queue with all that is in it"
	}
	return fmt.Sprintf("has maxmemory-policy %s: when memory runs out it may drop %s; set it to noeviction", policy, what), nil
}

// fileMayBeCutOff tells of a server that started from an append-only file and has not
// rewritten it since. Had it been killed while it wrote a batch, it has cut the file off
// within a transaction, which stays open: what follows joins it, and what stood in it runs
// at the next start (seen on 7.0.15). Whether that was so, a server does not tell; one
// before 7.0 does not even tell that it has rewritten the file.
func fileMayBeCutOff(ctx context.Context, c *redis.Client) (string, error) {
	info, err := c.InfoMap(ctx, "persistence").Result()
	if err != nil {
		return "", err
	}
	file := info["Persistence"]
	if file["aof_enabled"] != "1" || file["aof_rewrites"] != "0" || file["aof_base_size"] == "0" {
		return "", nil
	}
	// Who may not ask is told of the usual setting.
	if set, err := c.ConfigGet(ctx, "aof-load-truncated").Result(); err == nil && set["aof-load-truncated"] == "no" {
		return "", nil
	}
	return "was started from an append-only file and has not rewritten it since: if it had been killed before that, " +
		"a part of a batch may arrive twice when it starts the next time; run BGREWRITEAOF now, and after each crash", nil
}
