package supervisor

import (
	"context"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// identity distinguishes blockers: a transaction by when it began, and where that is not known
// by the transaction id that it holds. So a reader that makes progress, or a standby whose
// horizon moves, is a new blocker each time, and never old.
type identity struct {
	kind    buffer.BlockerKind
	name    string
	pid     int
	began   time.Time
	horizon int64
}

func identityOf(b *buffer.VacuumBlocker) identity {
	id := identity{kind: b.Kind, name: b.Name, began: b.BeganAt}
	if b.Kind == buffer.BlockedByTransaction {
		id.pid = b.PID
	}
	if b.BeganAt.IsZero() {
		id.horizon = b.Horizon
	}
	return id
}

// observation is a blocker, and what was logged and done about it.
type observation struct {
	blocker     buffer.VacuumBlocker
	first, last time.Time // by the local clock
	warnAt      time.Duration
	warned      bool
	// terminateAt is when its session may be terminated, terminateWait how long after that again.
	terminateAt   time.Time
	terminateWait time.Duration
}

// observe notes a blocker, and fills in an age that the database does not know.
func (s *Supervisor) observe(b *buffer.VacuumBlocker, now time.Time) *observation {
	id := identityOf(b)
	o := s.observed[id]
	if o == nil {
		o = &observation{first: now, warnAt: s.warnAfter}
		s.observed[id] = o
	}
	if b.Age == 0 && (b.Behind > 0 || b.Unread() || b.OnlyLocks()) {
		b.Age, b.AtLeast = now.Sub(o.first), true
	}
	o.blocker, o.last = *b, now
	return o
}

// warn logs a blocker that is old enough, and again each time its age has doubled.
func (s *Supervisor) warn(ctx context.Context, o *observation) {
	b := &o.blocker
	if b.Age < o.warnAt {
		return
	}
	o.warnAt, o.warned = 2*b.Age, true
	s.config.Log.WarnContext(ctx, "vacuum blocked by "+blockedBy(b.Kind), attrs(b)...)
}

func blockedBy(kind buffer.BlockerKind) string {
	if kind == buffer.BlockedByTransaction {
		return "long-running transaction"
	}
	return string(kind)
}

// missedPolls is for how many polls a blocker may be missing: between two statements a
// transaction that only reads has no snapshot.
const missedPolls = 3

// forget drops the blockers that are gone.
func (s *Supervisor) forget(ctx context.Context, now time.Time) {
	for id, o := range s.observed {
		if o.last.Equal(now) || now.Sub(o.last) < missedPolls*s.config.Every {
			continue
		}
		delete(s.observed, id)
		if o.warned {
			s.config.Log.InfoContext(ctx, "vacuum no longer blocked", attrs(&o.blocker)...)
		}
	}
}

// attrs are what is known of a blocker, for the log.
func attrs(b *buffer.VacuumBlocker) []any {
	all := []any{"kind", string(b.Kind)}
	add := func(key string, value any, known bool) {
		if known {
			all = append(all, key, value)
		}
	}
	add("name", b.Name, b.Name != "")
	add("pid", b.PID, b.PID != 0)
	add("application", b.Application, b.Kind == buffer.BlockedByTransaction || b.Application != "")
	add("user", b.User, b.User != "")
	add("database", b.Database, b.Database != "")
	add("state", b.State, b.State != "")
	if b.AtLeast {
		all = append(all, "observed_for", b.Age.Round(time.Millisecond))
	} else {
		all = append(all, "age", b.Age.Round(time.Millisecond))
	}
	add("query_age", b.QueryAge.Round(time.Millisecond), b.QueryAge > 0)
	add("behind", b.Behind, true)
	add("wal_bytes", b.WAL, b.WAL > 0)
	return all
}

// terminates reports whether a policy terminates a blocker's session. Source.Terminate checks that it
// is still the observed one.
func terminates(p *buffer.SupervisorPolicy, b *buffer.VacuumBlocker) bool {
	switch {
	case p.TerminateAfter == 0 || b.Age < p.TerminateAfter:
		return false
	case b.Waits: // what it waits for is the cause
		return false
	case b.Kind != buffer.BlockedByTransaction || b.Backend != "client backend" || b.IsRelay || b.BeganAt.IsZero():
		return false
	case b.Superuser && !slices.Contains(p.Users, b.User):
		return false
	case p.Users != nil && !slices.Contains(p.Users, b.User):
		return false
	}
	return p.Applications == nil || slices.Contains(p.Applications, b.Application)
}

// terminateRetry is how long after a first try the next one is; it doubles with each. A
// session that was terminated needs a moment to go, and one that cannot be terminated stays.
const terminateRetry = time.Minute

// terminate ends a blocker's session if a policy says so.
func (s *Supervisor) terminate(ctx context.Context, o *observation, now time.Time) {
	b := &o.blocker
	if now.Before(o.terminateAt) || !slices.ContainsFunc(s.config.Policies, func(p buffer.SupervisorPolicy) bool { return terminates(&p, b) }) {
		return
	}
	o.terminateWait = max(terminateRetry, 2*o.terminateWait)
	o.terminateAt = now.Add(o.terminateWait)
	askCtx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	terminated, err := s.source.Terminate(askCtx, *b)
	switch {
	case err != nil:
		s.config.Log.WarnContext(ctx, "terminating a session failed", append(attrs(b), "error", err)...)
	case terminated:
		s.config.Log.WarnContext(ctx, "session terminated", attrs(b)...)
	default:
		s.config.Log.WarnContext(ctx, "session not terminated: its transaction is over", attrs(b)...)
	}
}
