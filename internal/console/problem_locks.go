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
		Pipeline: pipeline, Server: s.servers[pipeline], Title: of.title, Detail: s.config.Redact(b.Text), Of: transactionOf(b), Alone: of.alone, Do: of.do, Fix: s.config.Redact(b.Fix), JoinedBy: b.Fix,
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

// endIt is what to do about a transaction, before what ends it.
const endIt = "Find out whose it is, and end it:"

// addRowLocks says which transaction holds locks in the event table, or is waited for by one that does, if it keeps events.
func (f *pipelineFinder) addRowLocks() {
	p, b := f.p, f.p.RowsLockedBy
	switch {
	case p.LockedBy != nil:
		title := "stands still: a transaction holds locks in its table"
		if p.LockedBy.WritersWait {
			title = "stands still: what holds locks in its table waits for a transaction"
		}
		f.add(problem{
			Title: title, Detail: p.LockedBy.Text, Of: transactionOf(p.LockedBy), Cause: buffer.NotReadyStalled,
			Alone: "Nothing ends it. The relay does not claim rows that are locked, and with order: key no later event of their keys. It continues when that transaction ends.",
			Do:    endIt, Fix: p.LockedBy.Fix, Link: "doctor", LinkText: "all open transactions",
		})
	case b == nil:
	case p.LockKeepsEvents():
		title := "a transaction blocks events: it holds locks in their table"
		if b.WritersWait {
			title = "a transaction blocks events: what holds locks in their table waits for it"
		}
		f.add(problem{
			Title: title, Detail: b.Text, Of: transactionOf(b), Warning: true, Deadly: true, Cause: causeLock,
			Now:   fmt.Sprintf("%s; the oldest waits for %s.", pendingText(p.Pending), admin.Oldest(p.Pending, p.OldestPendingSeconds, "")),
			Alone: lockAlone, Do: endIt, Fix: b.Fix, Link: "doctor", LinkText: "all open transactions",
		})
	case b.WritersWait:
		f.add(problem{
			Title: titleWriterWaits, Detail: b.Text, Of: transactionOf(b), Warning: true, Minor: true,
			Alone: "Nothing ends it. A transaction that has written into the table of this pipeline waits for it, and so do the events of that one. The relay sends all others.",
			Do:    endIt, Fix: b.Fix, Link: "doctor", LinkText: "all open transactions",
		})
	}
}

// addVacuum says what blocks vacuum, unless addRowLocks has said it.
func (f *pipelineFinder) addVacuum() {
	p, b := f.p, f.p.VacuumBlockedBy
	if b == nil || p.LockedBy != nil && p.LockedBy.Fix == b.Fix || p.RowsLockedBy != nil && p.RowsLockedBy.Fix == b.Fix && (p.LockKeepsEvents() || b.WritersWait) {
		return
	}
	one := problem{
		Title: blockerTitle(b), Detail: b.Text, Of: transactionOf(b), Warning: true,
		Alone: "Nothing ends it. It keeps no event from being sent, but the database's tables grow.",
		Do:    endIt, Fix: b.Fix, Link: "doctor", LinkText: "all that block vacuum", Minor: true,
	}
	if b.LocksBuffer {
		one.Title, one.Alone = "a transaction can block events: it holds locks in their table", canLockAlone(p)
		if p.Pending > 0 {
			one.Alone = lockAlone
		}
	}
	f.add(one)
}

// withoutMinor leaves out minor problems if ending the same transaction is what another one proposes.
func withoutMinor(all []problem) []problem {
	ends := map[string]bool{} // what ends a transaction that keeps events
	for i := range all {
		ends[all[i].Fix] = ends[all[i].Fix] || all[i].Fix != "" && !all[i].Minor
	}
	return slices.DeleteFunc(all, func(p problem) bool { return p.Minor && ends[p.Fix] })
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
