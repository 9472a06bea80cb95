package postgres

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/ownership"
	"github.com/outboxrelay/relay/outbox/postgres/internal/doctor"
)

// Diagnose implements buffer.Diagnoser.
func (b *Buffer) Diagnose(ctx context.Context) []buffer.Finding {
	c := doctor.Config{
		DB: b.db, Table: b.tableName, LedgerSchema: b.config.Schema, Policy: b.config.Supervisor, Custom: b.config.Custom.Is(),
		Check: b.Check, Peek: b.Peek, State: b.doctorState, Orphaned: b.orphaned,
		Owner: func() *ownership.Error {
			_, err := b.base.Ownership.Known()
			conflict, _ := errors.AsType[*ownership.Error](err)
			return conflict
		},
	}
	if b.config.Wake != buffer.WakePoll {
		c.Listener = b.Listener(nil)
	}
	findings := doctor.Diagnose(ctx, c)
	if b.config.Sinks == nil || b.table.Load() == nil {
		return findings
	}
	sinks, err := b.sinkFindings(ctx)
	if err != nil {
		sinks = append(sinks, buffer.Finding{Level: buffer.LevelError, Subject: "sinks", Text: "reading table outbox_sinks failed: " + err.Error(), Fix: "run relay doctor again"})
	}
	return append(findings, sinks...)
}

// doctorState returns what Check found; nil if tables are missing, or the projection cannot be run.
func (b *Buffer) doctorState() *doctor.State {
	t := b.table.Load()
	if t == nil || t.unusable != nil {
		return nil
	}
	s := &doctor.State{Tables: &t.Tables, Custom: t.custom, Mode: b.ClaimMode(), RangeRequested: b.config.Claim == buffer.ClaimRange}
	if !b.config.Ordered && b.config.Claim != buffer.ClaimStamp && t.RangeIneligible.Text != "" {
		s.NotRange = &t.RangeIneligible
	}
	s.ClaimSQL, s.ClaimArgs = t.events.Example(s.Mode)
	return s
}

// MissingPrivileges implements supervisor.Source.
func (b *Buffer) MissingPrivileges(ctx context.Context, p buffer.SupervisorPolicy) ([]buffer.Finding, error) {
	return doctor.MissingPrivileges(ctx, b.db, p)
}

// Blockers implements supervisor.Source. It works without the relay's tables.
func (b *Buffer) Blockers(ctx context.Context) ([]buffer.VacuumBlocker, error) {
	return doctor.Blockers(ctx, b.db)
}

// BufferTable returns the event table as "schema.table"; "" before Check has found it.
func (b *Buffer) BufferTable() string {
	if t := b.table.Load(); t != nil {
		return t.Buffer
	}
	return ""
}

// LockableTables returns the tables that the relay writes in as "schema.table", the event table first; nil before Check has found it. It stops if a transaction has locked
// one of them as a whole.
func (b *Buffer) LockableTables() []string {
	if t := b.table.Load(); t != nil {
		return doctor.LockableTables(&t.Tables)
	}
	return nil
}

// HiddenTransactions returns a finding if transactions whose age the role may not see are open for some seconds at least. It then takes these
// seconds. before is what Blockers returned just now.
func (b *Buffer) HiddenTransactions(ctx context.Context, before []buffer.VacuumBlocker) ([]buffer.Finding, error) {
	return doctor.Hidden(ctx, b.db, b.config.Supervisor, before)
}

// AlsoOwned returns findings about tables that the pipeline owned before and in which events are left, under its own name or another one.
func (b *Buffer) AlsoOwned(ctx context.Context) ([]buffer.Finding, error) {
	t := b.table.Load()
	if t == nil {
		return nil, nil
	}
	found, err := b.base.FindLeft(ctx, &t.Tables)
	if err != nil {
		return nil, err
	}
	replaced, err := b.base.FindReplaced(ctx, &t.Tables)
	return append(found, replaced...), err
}

// LeftBehind returns how many events are in other tables that the pipeline owned before and from which no relay that runs sends, up to 1,000 in each. Custom tables do
// not count.
func (b *Buffer) LeftBehind(ctx context.Context) (events int64, err error) {
	t := b.table.Load()
	if t == nil {
		return 0, nil
	}
	left, err := b.base.AlsoOwns(ctx, &t.Tables)
	for _, table := range left {
		if table.Events {
			events += table.Rows
		}
	}
	return events, err
}

// Terminate implements supervisor.Source.
func (b *Buffer) Terminate(ctx context.Context, blocker buffer.VacuumBlocker) (terminated bool, err error) {
	return doctor.Terminate(ctx, b.db, blocker)
}

// lockLook is the last look for a transaction that has locked a table as a whole; found is nil if there was none.
type lockLook struct {
	mu    sync.Mutex
	at    time.Time
	found *buffer.LockedError
}

// looksAgain is for how long several statements that took too long share a look.
const looksAgain = time.Second

// explainTimeout names the transaction that has locked a table as a whole if err may be that a statement waited for it.
func (b *Buffer) explainTimeout(ctx context.Context, err error) error {
	if !doctor.IsTimeout(err) {
		return err
	}
	if _, known := errors.AsType[*buffer.LockedError](err); known {
		return err
	}
	l := &b.lockLook
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.at) > looksAgain {
		schema, name := b.tableName()
		l.found = doctor.Locked(context.WithoutCancel(ctx), b.db, schema, name, b.config.Schema)
		l.at = time.Now()
	}
	if l.found == nil {
		return err
	}
	explained := *l.found
	explained.Err = err
	return &explained
}

// lookAfter is how long Status waits before it looks for a lock. A lock that is gone sooner only delays it.
const lookAfter = 2 * time.Second

// Status implements buffer.Inspector. If a table is locked as a whole for some seconds, the error names the session that holds the lock.
func (b *Buffer) Status(ctx context.Context) (buffer.Status, error) {
	asking, stop := context.WithCancel(ctx)
	defer stop()
	var locked *buffer.LockedError
	looked := make(chan struct{})
	timer := time.AfterFunc(lookAfter, func() {
		defer close(looked)
		schema, name := b.tableName()
		if locked = doctor.LockedForReads(asking, b.db, schema, name, b.config.Schema); locked != nil {
			stop()
		}
	})
	s, err := b.Backlog.Status(asking)
	if err == nil {
		stop()
	}
	if !timer.Stop() {
		<-looked
	}
	if err == nil {
		return s, nil
	}
	if locked != nil {
		locked.Err = err
		return s, locked
	}
	return s, b.explainTimeout(ctx, err)
}
