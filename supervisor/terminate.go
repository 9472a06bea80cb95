package supervisor

import (
	"context"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// terminates reports whether a policy has a blocker's session terminated. Whether it still is
// the session that was observed is for the database to say, when it is terminated.
func terminates(p *buffer.SupervisorPolicy, b *buffer.VacuumBlocker) bool {
	switch {
	case p.TerminateAfter == 0 || b.Age < p.TerminateAfter:
		return false
	case b.Kind != buffer.BlockedByTransaction || b.Backend != "client backend" || b.Own || b.BeganAt.IsZero():
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
