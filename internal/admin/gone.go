package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
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

// GoneText says that processes of Gone are, in one sentence: several would hide what else there is to say. The one that reported last comes first.
func GoneText(gone []buffer.Relay) string {
	const named = 5
	slices.SortStableFunc(gone, func(a, b buffer.Relay) int { return cmp.Compare(a.Seen, b.Seen) })
	r := &gone[0]
	if len(gone) > 1 {
		var names []string
		for i := range gone[:min(named, len(gone))] {
			names = append(names, process(gone[i].Owner))
		}
		if more := len(gone) - named; more > 0 {
			names = append(names, fmt.Sprintf("and %s more", Count(int64(more))))
		}
		return fmt.Sprintf("%s relays did not stop in order in the last hour: they were killed, hang, or cannot reach the database. The last one reported %s ago: %s",
			Count(int64(len(gone))), Age(r.Seen), strings.Join(names, ", "))
	}
	version := ""
	if r.Version != "" {
		version = " (" + r.Version + ")"
	}
	return fmt.Sprintf("relay %s%s reported last %s ago and did not stop in order: it was killed, hangs, or cannot reach the database", process(r.Owner), version, Age(r.Seen))
}
