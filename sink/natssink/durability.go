package natssink

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// What a broker's word is worth: an event is deleted from the database once it is acknowledged. From then on it
// is as durable as the stream.

const coreWarning = "core NATS stores nothing: an event without a subscriber, or in a server or connection that fails, is lost " +
	"although it counts as delivered; for events that must arrive use JetStream (core: false)"

// OfflineWarnings implements sink.OfflineWarner.
func (s *Sink) OfflineWarnings() []string {
	if s.core {
		return []string{coreWarning}
	}
	return nil
}

// durabilityWarnings are about streams that lose acknowledged events when a server process ends.
func durabilityWarnings(c *jetstream.StreamConfig) (warnings []string) {
	if c.Storage == jetstream.MemoryStorage {
		what := "a restart of its server"
		if c.Replicas > 1 {
			what = fmt.Sprintf("a restart of most of its %d servers", c.Replicas)
		}
		warnings = append(warnings, fmt.Sprintf("stream %s is in memory: %s loses all of its events, which the database no longer has; "+
			"create it again with: nats stream add %s --storage file", c.Name, what, c.Name))
	}
	if c.PersistMode == jetstream.AsyncPersistMode {
		warnings = append(warnings, fmt.Sprintf("stream %s has persist_mode async: it acknowledges events that are not in its file yet, "+
			"so a crash of the server loses some; create it again with the default persist_mode", c.Name))
	}
	return warnings
}

// Notes implements sink.Informer: streams with one replica.
func (s *Sink) Notes(ctx context.Context) (notes []string) {
	if s.core {
		return nil
	}
	c, err := s.connection(ctx)
	if err != nil {
		return nil // Check says so
	}
	streams, err := c.listStreams(ctx, s.subject)
	if err != nil {
		return nil // Warnings says so
	}
	for _, info := range streams {
		if c := &info.Config; c.Replicas <= 1 && c.Storage == jetstream.FileStorage {
			notes = append(notes, fmt.Sprintf("stream %s has one replica: a power cut can lose what its server acknowledged within sync_interval "+
				"(2 minutes by default), and a lost disk loses the stream; in a cluster: nats stream edit %s --replicas 3", c.Name, c.Name))
		}
	}
	return notes
}
