package supervisor

import (
	"context"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// ends tells whether a watch has a holder ended. That it is still the one that was seen
// is for the database to say, when it is ended.
func ends(w *buffer.SupervisorPolicy, h *buffer.VacuumBlocker) bool {
	switch {
	case w.TerminateAfter == 0 || h.Age < w.TerminateAfter:
		return false
	case h.Kind != buffer.BlockedByTransaction || h.Backend != "client backend" || h.Own || h.BeganAt.IsZero():
		return false
	case h.Superuser && !slices.Contains(w.Users, h.User):
		return false
	case w.Users != nil && !slices.Contains(w.Users, h.User):
		return false
	}
	return w.Applications == nil || slices.Contains(w.Applications, h.Application)
}

// A session that was ended needs a moment to go, one that cannot be ended stays: it is
// tried again after endAgain, then after twice that, and so on.
const endAgain = time.Minute

// end ends a holder when a watch says so.
func (s *Supervisor) end(ctx context.Context, one *sighting, now time.Time) {
	h := &one.holder
	if now.Before(one.endNext) || !slices.ContainsFunc(s.config.Watches, func(w buffer.SupervisorPolicy) bool { return ends(&w, h) }) {
		return
	}
	one.endWait = max(endAgain, 2*one.endWait)
	one.endNext = now.Add(one.endWait)
	ending, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ended, err := s.source.Terminate(ending, *h)
	switch {
	case err != nil:
		s.config.Log.WarnContext(ctx, "a session cannot be ended", append(facts(h), "error", err)...)
	case ended:
		s.config.Log.WarnContext(ctx, "a session was ended", append(facts(h), "answer", "terminated")...)
	default:
		s.config.Log.WarnContext(ctx, "a session was not ended", append(facts(h), "answer", "the transaction is over, or is another one")...)
	}
}
