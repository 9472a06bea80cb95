package console

import (
	"fmt"
	"slices"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// addTableLocks says which tables a transaction has locked as a whole.
func (f *finder) addTableLocks() {
	for _, p := range f.config.Source.Pipelines() {
		if b := f.tableLocks[p.Name]; b != nil {
			f.all = append(f.all, f.lockProblem(p.Name, b))
		}
	}
}

// lockProblem is that of a transaction that has locked a table of a pipeline as a whole.
func (s *Console) lockProblem(pipeline string, b *admin.BlockerReport) problem {
	of := kindProblem[buffer.KindLocked]
	one := problem{
		Pipeline: pipeline, Server: s.servers[pipeline], Title: of.title, Detail: s.config.Redact(b.Text), Alone: of.alone, Do: of.do, Fix: s.config.Redact(b.Fix), Joined: true,
		Link: "doctor", LinkText: "all open transactions",
	}
	switch {
	case b.Waiting == 1:
		one.Now = "1 session waits for it."
	case b.Waiting > 1:
		one.Now = admin.Count(int64(b.Waiting)) + " sessions wait for it."
	}
	return one
}

// addRowLocks says which transaction holds locks in the event table, if it keeps events.
func (f *pipelineFinder) addRowLocks() {
	p := f.p
	if b := p.LockedBy; b != nil {
		f.add(problem{
			Title: "stands still: a transaction holds locks in its table", Detail: b.Text, Cause: buffer.NotReadyStalled,
			Alone: "Nothing ends it. The relay does not claim rows that are locked, and with order: key no later event of their keys. It continues when that transaction ends.",
			Do:    "Find out whose it is, and end it:", Fix: b.Fix, Link: "doctor", LinkText: "all open transactions",
		})
	}
	if b := p.RowsLockedBy; b != nil && p.LockedBy == nil && p.LockKeepsEvents() {
		f.add(problem{
			Title: "a transaction blocks events: it holds locks in their table", Detail: b.Text, Warning: true, Deadly: true, Cause: causeLock,
			Now:   fmt.Sprintf("%s; the oldest waits for %s.", pendingText(p.Pending), admin.Oldest(p.Pending, p.OldestPendingSeconds, "")),
			Alone: lockAlone, Do: "Find out whose it is, and end it:", Fix: b.Fix, Link: "doctor", LinkText: "all open transactions",
		})
	}
}

// addVacuum says what blocks vacuum, unless addRowLocks has said it.
func (f *pipelineFinder) addVacuum() {
	p, b := f.p, f.p.VacuumBlockedBy
	if b == nil || p.LockedBy != nil && p.LockedBy.Fix == b.Fix || p.RowsLockedBy != nil && p.RowsLockedBy.Fix == b.Fix && p.LockKeepsEvents() {
		return
	}
	one := problem{
		Title: blockerTitle(b), Detail: b.Text, Warning: true,
		Alone: "Nothing ends it. It keeps no event from being sent, but the database's tables grow.",
		Do:    "Find out whose it is, and end it:", Fix: b.Fix, Link: "doctor", LinkText: "all that block vacuum", OnlyVacuum: true,
	}
	if b.LocksBuffer {
		one.Title, one.Alone = "a transaction can block events: it holds locks in their table", canLockAlone(p)
		if p.Pending > 0 {
			one.Alone = lockAlone
		}
	}
	f.add(one)
}

// withoutVacuum leaves out what blocks vacuum only if ending the same transaction is what another problem proposes.
func withoutVacuum(all []problem) []problem {
	ends := map[string]bool{} // what ends a transaction that keeps events
	for i := range all {
		ends[all[i].Fix] = ends[all[i].Fix] || all[i].Fix != "" && !all[i].OnlyVacuum
	}
	return slices.DeleteFunc(all, func(p problem) bool { return p.OnlyVacuum && ends[p.Fix] })
}

// blockerTitle says what blocks vacuum.
func blockerTitle(b *admin.BlockerReport) string {
	switch b.Kind {
	case string(buffer.BlockedByTransaction):
		return "a forgotten transaction blocks vacuum"
	case string(buffer.BlockedBySlot):
		return "a replication slot blocks vacuum"
	}
	return "a " + b.Kind + " blocks vacuum"
}

// lockAlone is what a transaction with locks in the event table does, for as long as it is open.
const lockAlone = "Nothing ends it. Rows that it has locked are not sent, or not deleted after they were sent, and with order: key no later event of their keys is sent. All other events are. The database's tables grow."

// canLockAlone is what one does that keeps no event, as far as is known.
func canLockAlone(p *admin.PipelineReport) string {
	const grows = " The database's tables grow."
	switch n := p.Batches.Delivered; {
	case n == 1:
		return "Nothing ends it. 1 batch was sent, and is not sent again; its events are deleted when that transaction ends. Nothing else waits for it." + grows
	case n > 1:
		return "Nothing ends it. " + admin.Count(n) + " batches were sent, and are not sent again; their events are deleted when that transaction ends. Nothing else waits for it." + grows
	}
	return "Nothing ends it. No event waits for it now, as far as is known. Rows that it has locked are not sent, or not deleted after they were sent." + grows
}
