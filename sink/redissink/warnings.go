package redissink

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Warnings implements sink.Warner. It checks the deduplication window and the servers' settings for memory,
// persistence and replication.
func (s *Sink) Warnings(ctx context.Context) []string {
	var warnings []string
	if resend := s.cfg.ResendWithin; s.cfg.Mode.hasMarkers() && s.cfg.DedupeWindow < resend {
		warnings = append(warnings, fmt.Sprintf("dedupe_window is %v, but an event may be resent for %v and then arrive twice; "+
			"set dedupe_window to %v or more", s.cfg.DedupeWindow, resend, resend))
	}
	about, err := s.aboutServers(ctx, s.evictionWarning, truncationWarning, persistenceWarning, s.replicaWarning)
	if err != nil {
		about = append(about, fmt.Sprintf("cannot check maxmemory-policy, persistence and replicas of Redis: %v", s.secrets.redact(err)))
	}
	return append(warnings, about...)
}

// OfflineWarnings implements sink.OfflineWarner.
func (s *Sink) OfflineWarnings() []string {
	if !s.failsOver || s.cfg.Mode == Publish || s.cfg.WaitReplicas > 0 {
		return nil
	}
	return []string{"wait_replicas is 0, so a failover can lose acknowledged events; set wait_replicas to 1 or more"}
}

// Obstacles implements sink.Obstructed: a server that is out of memory answers PING.
func (s *Sink) Obstacles(ctx context.Context) []string {
	obstacles, err := s.aboutServers(ctx, memoryObstacle)
	if err != nil {
		return nil // a warning says so
	}
	return obstacles
}

// Notes implements sink.Informer: what a power cut takes from a server with an append-only file, and a failover to a replica
// that was not waited for.
func (s *Sink) Notes(ctx context.Context) []string {
	notes, err := s.aboutServers(ctx, syncNote, s.replicaNote)
	if err != nil {
		return nil // a warning says so
	}
	return notes
}

// A check returns what is to be said about a server, or "". settings are those of INFO.
type check = func(ctx context.Context, c *redis.Client, settings map[string]map[string]string) string

// aboutServers runs the checks for every master.
func (s *Sink) aboutServers(ctx context.Context, checks ...check) ([]string, error) {
	if s.cfg.Mode == Publish {
		return nil, nil // Redis stores nothing
	}
	var mu sync.Mutex
	var all []string
	err := s.servers.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		settings, err := c.InfoMap(ctx).Result()
		if err != nil {
			return err
		}
		for _, about := range checks {
			if text := about(ctx, c, settings); text != "" {
				mu.Lock()
				all = append(all, fmt.Sprintf("Redis at %s %s", c.Options().Addr, text))
				mu.Unlock()
			}
		}
		return nil
	})
	slices.Sort(all)
	return all, err
}

// setting returns a setting that a user without +config|get cannot read, as on many managed servers.
func setting(ctx context.Context, c *redis.Client, name string) (value string, known bool) {
	set, err := c.ConfigGet(ctx, name).Result()
	value, known = set[name]
	return value, err == nil && known
}

// persistenceWarning is about a server that keeps nothing on disk, or snapshots only. Delivered events are
// deleted from the database.
func persistenceWarning(ctx context.Context, c *redis.Client, settings map[string]map[string]string) string {
	if settings["Persistence"]["aof_enabled"] != "0" {
		return ""
	}
	const fix = "delivered events are deleted from the database; set appendonly to yes"
	save, known := setting(ctx, c, "save")
	switch {
	case known && save == "":
		return "keeps nothing on disk (appendonly no, no save), so a restart loses all events in it; " + fix
	case known:
		return fmt.Sprintf("has snapshots only (appendonly no, save %s), so a crash loses the events since the last one; %s", save, fix)
	}
	return "has no append-only file, so a crash loses the events since the last snapshot, if it takes any; " + fix
}

// syncNote is about a server whose append-only file does not reach the disk before the reply.
func syncNote(ctx context.Context, c *redis.Client, settings map[string]map[string]string) string {
	if settings["Persistence"]["aof_enabled"] != "1" {
		return ""
	}
	switch sync, _ := setting(ctx, c, "appendfsync"); sync {
	case "always":
		return ""
	case "no":
		return "has appendfsync no: a power cut can lose about 30 s of events, a crash of Redis none"
	case "everysec":
		return "has appendfsync everysec: a power cut can lose up to 2 s of events, and so can a crash of Redis while its disk is slow"
	}
	return "has an append-only file, and appendfsync cannot be read: unless it is always, a power cut can lose the last events"
}

// replicaWarning is about replicas that may become the master without the last events.
func (s *Sink) replicaWarning(_ context.Context, _ *redis.Client, settings map[string]map[string]string) string {
	replicas, err := strconv.Atoi(settings["Replication"]["connected_slaves"])
	switch {
	case err != nil || replicas == s.cfg.WaitReplicas:
		return ""
	case s.cfg.WaitReplicas == 0:
		return fmt.Sprintf("has %d replicas and wait_replicas is 0, so a failover can lose acknowledged events; set wait_replicas to 1 or more", replicas)
	case replicas < s.cfg.WaitReplicas:
		return fmt.Sprintf("has %d replicas and wait_replicas is %d, so events wait; connect more replicas, or set wait_replicas to less",
			replicas, s.cfg.WaitReplicas)
	}
	return ""
}

// replicaNote is about replicas that may become the master although wait_replicas does not wait for them. In a planned failover,
// or when the old master only hung, it and the other replicas go on acknowledging for a moment.
func (s *Sink) replicaNote(_ context.Context, _ *redis.Client, settings map[string]map[string]string) string {
	replicas, err := strconv.Atoi(settings["Replication"]["connected_slaves"])
	if err != nil || s.cfg.WaitReplicas == 0 || replicas <= s.cfg.WaitReplicas {
		return ""
	}
	return fmt.Sprintf("has %[1]d replicas and wait_replicas is %[2]d: a failover to a replica that has not acknowledged loses events; "+
		"wait_replicas %[1]d rules that out, but then events wait while a replica is missing", replicas, s.cfg.WaitReplicas)
}

// evictionWarning is about a server that evicts keys when memory runs out.
func (s *Sink) evictionWarning(_ context.Context, _ *redis.Client, settings map[string]map[string]string) string {
	memory := settings["Memory"]
	policy := memory["maxmemory_policy"]
	if memory["maxmemory"] == "0" || policy == "noeviction" {
		return ""
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
	return fmt.Sprintf("has maxmemory-policy %s and may evict %s; set maxmemory-policy to noeviction", policy, keys)
}

// memoryObstacle is about a server that refuses writes until memory is freed. The buffers of replicas and of the append-only file do not
// count; see getMaxmemoryState in Redis's evict.c.
func memoryObstacle(_ context.Context, _ *redis.Client, settings map[string]map[string]string) string {
	memory := settings["Memory"]
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(memory[name], 10, 64) // 0 if the server does not say
		return n
	}
	used, limit := number("used_memory")-number("mem_not_counted_for_evict"), number("maxmemory")
	if limit == 0 || used <= limit || memory["maxmemory_policy"] != "noeviction" {
		return ""
	}
	return fmt.Sprintf("is out of memory and refuses events (it uses %d of maxmemory %d bytes, with maxmemory-policy noeviction); "+
		"delete what its consumers are done with, or raise maxmemory", used, limit)
}

// truncationWarning is about a server that started from an append-only file and has not rewritten it since.
// If the server was killed while it wrote a batch, it truncates the file within a transaction, which stays
// open: later commands join it, and its first part runs again at the next start (seen on 7.0.15). A server
// does not report that; one before 7.0 does not even report that it has rewritten the file.
func truncationWarning(ctx context.Context, c *redis.Client, settings map[string]map[string]string) string {
	file := settings["Persistence"]
	if file["aof_enabled"] != "1" || file["aof_rewrites"] != "0" || file["aof_base_size"] == "0" {
		return ""
	}
	// A user without +config|get gets the warning for the default setting.
	if load, _ := setting(ctx, c, "aof-load-truncated"); load == "no" {
		return ""
	}
	return "started from an append-only file and has not rewritten it since; if it had crashed before, " +
		"part of a batch may be written twice at the next start; run BGREWRITEAOF now and after each crash"
}
