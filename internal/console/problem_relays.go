package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// addElsewhere says which sinks are not ready in other processes.
func (f *pipelineFinder) addElsewhere() {
	p := f.p
	for i := range p.Relays {
		r := &p.Relays[i]
		if !r.Running || r.NotReady == "" || f.isThis(r.Owner) || f.notReady[p.Name+"/"+r.Sink] || p.LockedBy != nil && r.NotReadyKind == buffer.NotReadyStalled {
			continue
		}
		if p.TableLockedBy != nil && (r.NotReadyClass == buffer.NotReadyDatabase || r.NotReadyKind == buffer.NotReadyStalled) || f.lockIsOver(r) {
			continue
		}
		one := f.elsewhereProblem(r)
		if k, known := f.elsewhere[r.Sink]; !known {
			f.elsewhere[r.Sink] = len(f.all)
		} else if f.all[k].Title == one.Title {
			f.all[k].Detail = process(r.Owner) + ", " + f.all[k].Detail
			continue
		}
		f.add(one)
	}
}

// lockIsOver reports whether this process has looked for locks, and found none, since a relay reported one: it may be gone since, as the lock is.
func (f *pipelineFinder) lockIsOver(r *admin.RelayReport) bool {
	reported := time.Now().Add(-time.Duration(r.SeenSeconds * float64(time.Second)))
	return r.NotReadyKind == buffer.KindLocked && f.p.TableLockedBy == nil && f.p.LocksSeenAt.After(reported)
}

// elsewhereProblem is that of a relay of another process that is not ready.
func (f *pipelineFinder) elsewhereProblem(r *admin.RelayReport) problem {
	p, of := f.p, problemOf(r.NotReadyKind, r.NotReadyClass)
	one := problem{
		Sink: r.Sink, Server: f.servers[p.Name+"/"+r.Sink], Title: of.title, Detail: process(r.Owner) + ": " + r.NotReady, Cause: causeOf(r.NotReadyClass), Alone: of.alone, Do: of.do, Warning: true,
	}
	if r.NotReadyKind == buffer.KindSome { // it makes progress with the others: the same is true of the sink whichever relay says so
		one.Refuses = true
		one.Link, one.LinkText = pipelineLink(p.Name)+waitsAnchor, "what waits"
		if hasDead(p, r.Sink) {
			one.Link, one.LinkText = deadLink(p.Name, r.Sink), "which topics and errors"
		}
		return one
	}
	one.Title = "another relay makes no progress: " + cmp.Or(of.title, "see its log")
	one.Alone, one.Do = strings.TrimSpace("This relay does its work, as far as it can. "+of.alone), cmp.Or(of.do, "Look at the log of that process.")
	if r.NotReadyKind == buffer.KindLocked { // what ends the transaction may be of one that is over
		one.Detail, _, _ = strings.Cut(one.Detail, ". > ")
		one.Do, one.Link, one.LinkText = "This relay has not seen that lock. See whether the transaction is still open, and whose it is.", "doctor", "all open transactions"
	}
	return one
}

// addGone says which relays did not stop in order.
func (f *pipelineFinder) addGone() {
	names := f.gone(f.p)
	if names == nil {
		return
	}
	f.add(problem{
		Title: map[bool]string{true: "a relay is gone", false: "relays are gone"}[len(names) == 1], Warning: true,
		Detail: strings.Join(names, ", ") + " did not stop in order: it was killed, hangs, or cannot reach the database, and no other relay has started since.",
		Alone:  "The others do its work, and take its batches over when their leases end.", Do: "Find out why it ended: its log, memory limits, a crash of the host. Start it again.",
	})
}

// goneFor is for how long a relay that is gone is missed.
const goneFor = time.Hour

// gone are the processes that worked on a pipeline, neither run nor stopped in order, and after whose last report no other one started, while another one runs.
func (s *Console) gone(p *admin.PipelineReport) (names []string) {
	type run struct {
		name          string
		seen, started float64 // seconds ago
		runs, stopped bool
	}
	var all []run
	for i := range p.Relays {
		r := &p.Relays[i]
		k := slices.IndexFunc(all, func(one run) bool { return one.name == process(r.Owner) })
		if k < 0 {
			k = len(all)
			all = append(all, run{name: process(r.Owner), seen: r.SeenSeconds})
		}
		one := &all[k]
		one.seen, one.started = min(one.seen, r.SeenSeconds), max(one.started, r.SeenSeconds+r.UptimeSeconds)
		one.runs, one.stopped = one.runs || r.Running || s.isThis(r.Owner), one.stopped || r.Stopped
	}
	used := map[string]bool{} // a new process replaces one
	runs := false
	for i := range all {
		runs = runs || all[i].runs
	}
	for i := range all {
		one := &all[i]
		if one.runs || one.stopped || one.seen > goneFor.Seconds() {
			continue
		}
		k := slices.IndexFunc(all, func(other run) bool { return other.runs && other.started < one.seen && !used[other.name] })
		if k >= 0 {
			used[all[k].name] = true
			continue
		}
		names = append(names, fmt.Sprintf("relay %s, which reported last %s ago", one.name, admin.Age(time.Duration(one.seen*float64(time.Second)))))
	}
	if !runs {
		return nil
	}
	return names
}

// process is an owner without its pipeline: host/pid.
func process(owner string) string {
	if parts := strings.SplitN(owner, "/", 3); len(parts) == 3 {
		return parts[0] + "/" + parts[1]
	}
	return owner
}

// isThis reports whether an owner is of this process.
func (s *Console) isThis(owner string) bool { return strings.HasPrefix(owner, s.config.Process+"/") }
