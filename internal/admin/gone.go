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

// GoneNames names processes of Gone, whatever their order: pipelines with the same names tell of the same ones.
func GoneNames(gone []buffer.Relay) string {
	names := make([]string, len(gone))
	for i := range gone {
		names[i] = process(gone[i].Owner)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// GoneText says that processes of Gone are, in one sentence: several would hide what else there is to say. The one that reported last comes first.
func GoneText(gone []buffer.Relay) string {
	slices.SortStableFunc(gone, func(a, b buffer.Relay) int { return cmp.Compare(a.Seen, b.Seen) })
	r := &gone[0]
	if len(gone) > 1 {
		names := make([]string, len(gone))
		for i := range gone {
			names[i] = process(gone[i].Owner)
		}
		return fmt.Sprintf("%s relays did not stop in order in the last hour: they were killed, hang, or cannot reach the database. The last one reported %s ago: %s",
			Count(int64(len(gone))), Age(r.Seen), listed(names))
	}
	version := ""
	if r.Version != "" {
		version = " (" + r.Version + ")"
	}
	return fmt.Sprintf("relay %s%s reported last %s ago and did not stop in order: it was killed, hangs, or cannot reach the database", process(r.Owner), version, Age(r.Seen))
}
