package redissink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Warnings implements sink.Warner. It checks the deduplication window and the servers' settings for memory
// and persistence.
func (s *Sink) Warnings(ctx context.Context) []string {
	var warnings []string
	if resend := s.cfg.ResendWithin; s.cfg.Mode.hasMarkers() && s.cfg.DedupeWindow < resend {
		warnings = append(warnings, fmt.Sprintf("dedupe_window is %v, but an event may be resent for %v and then arrive twice; "+
			"set dedupe_window to %v or more", s.cfg.DedupeWindow, resend, resend))
	}
	return append(warnings, s.serverWarnings(ctx)...)
}

// serverWarnings checks the settings of every master.
func (s *Sink) serverWarnings(ctx context.Context) []string {
	if s.cfg.Mode == Publish {
		return nil // Redis stores nothing
	}
	var mu sync.Mutex
	var warnings []string
	err := s.servers.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		eviction, errMemory := s.evictionWarning(ctx, c)
		truncation, errFile := truncationWarning(ctx, c)
		mu.Lock()
		defer mu.Unlock()
		for _, warning := range []string{eviction, truncation} {
			if warning != "" {
				warnings = append(warnings, fmt.Sprintf("Redis at %s %s", c.Options().Addr, warning))
			}
		}
		return errors.Join(errMemory, errFile)
	})
	if err != nil {
		warnings = append(warnings, fmt.Sprintf("cannot check maxmemory-policy and the append-only file of Redis: %v", s.secrets.redact(err)))
	}
	slices.Sort(warnings)
	return warnings
}

// evictionWarning is about a server that evicts keys when memory runs out.
func (s *Sink) evictionWarning(ctx context.Context, c *redis.Client) (string, error) {
	info, err := c.InfoMap(ctx, "memory").Result()
	if err != nil {
		return "", err
	}
	memory := info["Memory"]
	policy := memory["maxmemory_policy"]
	if memory["maxmemory"] == "0" || policy == "noeviction" {
		return "", nil
	}
	keys := "a stream with its events, or the markers that prevent duplicates"
	switch s.cfg.Mode {
	case List:
		keys = "a list with its events"
	case Sidekiq:
		keys = "a queue with its events"
	case Asynq:
		keys = "a queue with its events, or the markers that prevent duplicates"
	}
	return fmt.Sprintf("has maxmemory-policy %s and may evict %s; set maxmemory-policy to noeviction", policy, keys), nil
}

// truncationWarning is about a server that started from an append-only file and has not rewritten it since.
// If the server was killed while it wrote a batch, it truncates the file within a transaction, which stays
// open: later commands join it, and its first part runs again at the next start (seen on 7.0.15). A server
// does not report that; one before 7.0 does not even report that it has rewritten the file.
func truncationWarning(ctx context.Context, c *redis.Client) (string, error) {
	info, err := c.InfoMap(ctx, "persistence").Result()
	if err != nil {
		return "", err
	}
	file := info["Persistence"]
	if file["aof_enabled"] != "1" || file["aof_rewrites"] != "0" || file["aof_base_size"] == "0" {
		return "", nil
	}
	// A user without +config|get gets the warning for the default setting.
	if set, err := c.ConfigGet(ctx, "aof-load-truncated").Result(); err == nil && set["aof-load-truncated"] == "no" {
		return "", nil
	}
	return "started from an append-only file and has not rewritten it since; if it had crashed before, " +
		"part of a batch may be written twice at the next start; run BGREWRITEAOF now and after each crash", nil
}
