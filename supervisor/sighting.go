package supervisor

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// identity tells a holder from another: a transaction by when it began, and where that
// is not known by the transaction id that it holds. So a reader that gets on, or
// a standby whose horizon moves, is a new one each time, and never old.
type identity struct {
	kind    buffer.BlockerKind
	name    string
	pid     int
	began   time.Time
	horizon int64
}

func identityOf(h *buffer.VacuumBlocker) identity {
	id := identity{kind: h.Kind, name: h.Name, began: h.BeganAt}
	if h.Kind == buffer.BlockedByTransaction {
		id.pid = h.PID
	}
	if h.BeganAt.IsZero() {
		id.horizon = h.Horizon
	}
	return id
}

// sighting is a holder and what was said and done about it.
type sighting struct {
	holder      buffer.VacuumBlocker
	first, last time.Time // by the local clock
	// warnAt is the age at which it is told of, or told of again.
	warnAt time.Duration
	told   bool
	// endNext is when ending it may be tried, endWait how long after that again.
	endNext time.Time
	endWait time.Duration
}

// sight notes a holder, and fills in an age that the database does not know.
func (s *Supervisor) sight(h *buffer.VacuumBlocker, now time.Time) *sighting {
	id := identityOf(h)
	one := s.seen[id]
	if one == nil {
		one = &sighting{first: now, warnAt: s.warnAfter}
		s.seen[id] = one
	}
	if h.Age == 0 && (h.Behind > 0 || h.Unread()) {
		h.Age, h.AtLeast = now.Sub(one.first), true
	}
	one.holder, one.last = *h, now
	return one
}

// warn tells of a holder when it is old enough, and then each time its age has doubled.
func (s *Supervisor) warn(ctx context.Context, one *sighting) {
	h := &one.holder
	if h.Age < one.warnAt {
		return
	}
	one.warnAt, one.told = 2*h.Age, true
	s.config.Log.WarnContext(ctx, "the database is held back", facts(h)...)
}

// grace is for how many looks a holder may be out of sight: between two statements a
// transaction that only reads has no snapshot.
const grace = 3

// forget drops those that are gone.
func (s *Supervisor) forget(ctx context.Context, now time.Time) {
	for id, one := range s.seen {
		if one.last.Equal(now) || now.Sub(one.last) < grace*s.config.Every {
			continue
		}
		delete(s.seen, id)
		if one.told {
			s.config.Log.InfoContext(ctx, "no longer held back", facts(&one.holder)...)
		}
	}
}

// facts are what is known of a holder, for the log.
func facts(h *buffer.VacuumBlocker) []any {
	all := []any{"kind", string(h.Kind)}
	add := func(key string, value any, known bool) {
		if known {
			all = append(all, key, value)
		}
	}
	add("name", h.Name, h.Name != "")
	add("pid", h.PID, h.PID != 0)
	add("application", h.Application, h.Kind == buffer.BlockedByTransaction || h.Application != "")
	add("user", h.User, h.User != "")
	add("database", h.Database, h.Database != "")
	add("state", h.State, h.State != "")
	if h.AtLeast {
		all = append(all, "seen_for", h.Age.Round(time.Millisecond))
	} else {
		all = append(all, "age", h.Age.Round(time.Millisecond))
	}
	add("query_age", h.QueryAge.Round(time.Millisecond), h.QueryAge > 0)
	add("behind", h.Behind, true)
	add("wal_bytes", h.WAL, h.WAL > 0)
	return all
}
