package console

import (
	"cmp"
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

// process is an owner without its pipeline: host/pid.
func process(owner string) string {
	if parts := strings.SplitN(owner, "/", 3); len(parts) == 3 {
		return parts[0] + "/" + parts[1]
	}
	return owner
}

// isThis reports whether an owner is of this process.
func (s *Console) isThis(owner string) bool { return strings.HasPrefix(owner, s.config.Process+"/") }
