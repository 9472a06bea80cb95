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

// GoneText says that processes of Gone are, in one sentence: several would hide what else there is to say. Those after which no other relay started on
// their host come first, as one that hangs now; then the one that reported last.
func GoneText(gone, relays []buffer.Relay) string {
	gone = slices.Clone(gone)
	again := replaced(gone, relays)
	slices.SortStableFunc(gone, func(a, b buffer.Relay) int {
		return cmp.Or(cmp.Compare(btoi(again[process(a.Owner)]), btoi(again[process(b.Owner)])), cmp.Compare(a.Seen, b.Seen))
	})
	missing := slices.IndexFunc(gone, func(r buffer.Relay) bool { return again[process(r.Owner)] })
	if missing < 0 {
		missing = len(gone)
	}
	const why = "killed, hang, or cannot reach the database"
	names := make([]string, len(gone))
	for i := range gone {
		names[i] = process(gone[i].Owner) + " " + Age(gone[i].Seen) + " ago"
	}
	switch since, r := listed(names[missing:]), &gone[0]; {
	case len(gone) == 1:
		version, then := "", ""
		if r.Version != "" {
			version = " (" + r.Version + ")"
		}
		if missing == 0 {
			then = "; another relay started on its host since"
		}
		return fmt.Sprintf("relay %s%s reported last %s ago and did not stop in order: it was killed, hangs, or cannot reach the database%s", process(r.Owner), version, Age(r.Seen), then)
	case missing == 0:
		return fmt.Sprintf("%s relays did not stop in order in the last hour, and as many started on their hosts since: they were "+why+". They reported last: %s", Count(int64(len(gone))), since)
	case missing == len(gone):
		return fmt.Sprintf("%s relays did not stop in order in the last hour: they were "+why+". They reported last: %s", Count(int64(len(gone))), listed(names))
	default:
		return fmt.Sprintf("%s relays did not stop in order in the last hour: they were "+why+". They reported last: %s; and, with as many started on their hosts since: %s",
			Count(int64(len(gone))), listed(names[:missing]), since)
	}
}

// replaced returns the processes after which another one started on the same host, one for each.
func replaced(gone, relays []buffer.Relay) map[string]bool {
	type start struct {
		name string
		ago  time.Duration
		used bool
	}
	var starts []start
	for i := range relays {
		r := &relays[i]
		ago := r.Seen + r.Uptime
		if at := slices.IndexFunc(starts, func(s start) bool { return s.name == process(r.Owner) }); at >= 0 {
			starts[at].ago = max(starts[at].ago, ago)
			continue
		}
		starts = append(starts, start{name: process(r.Owner), ago: ago})
	}
	slices.SortFunc(starts, func(a, b start) int { return cmp.Compare(b.ago, a.ago) })
	ended := slices.Clone(gone)
	slices.SortFunc(ended, func(a, b buffer.Relay) int { return cmp.Compare(b.Seen, a.Seen) })
	all := map[string]bool{}
	for i := range ended {
		name := process(ended[i].Owner)
		for k := range starts {
			if s := &starts[k]; !s.used && s.ago < ended[i].Seen && hostOf(s.name) == hostOf(name) {
				s.used, all[name] = true, true
				break
			}
		}
	}
	return all
}

func hostOf(process string) string {
	host, _, _ := strings.Cut(process, "/")
	return host
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
