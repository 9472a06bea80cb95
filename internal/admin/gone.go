package admin

import (
	"fmt"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// goneFor is how long a process that ended without saying so is shown.
const goneFor = time.Hour

// Gone returns the processes that neither run nor stopped in order, once each: somebody killed them, they hang, or they cannot reach the database.
func Gone(relays []buffer.Relay) (gone []buffer.Relay) {
	for i := range relays {
		r := &relays[i]
		same := func(other buffer.Relay) bool { return process(other.Owner) == process(r.Owner) }
		if r.Runs() || r.Stopped || r.Seen > goneFor || slices.ContainsFunc(gone, same) ||
			slices.ContainsFunc(relays, func(other buffer.Relay) bool { return same(other) && other.Runs() }) {
			continue
		}
		gone = append(gone, *r)
	}
	return gone
}

// GoneText says that a process of Gone is.
func GoneText(r *buffer.Relay) string {
	version := ""
	if r.Version != "" {
		version = " (" + r.Version + ")"
	}
	return fmt.Sprintf("relay %s%s reported last %s ago and did not stop in order: it was killed, hangs, or cannot reach the database", process(r.Owner), version, Age(r.Seen))
}
