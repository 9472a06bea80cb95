package access

import (
	"sync"
	"time"
)

// endedSessions are the sessions that a logout ended, until they would have ended anyway. The zero value has none.
type endedSessions struct {
	mu sync.Mutex
	by map[string]time.Time // when it would have ended, by id
}

// maxEnded bounds the memory. Only a user with a token can end more sessions than that within SessionLasts.
const maxEnded = 10_000

func (e *endedSessions) add(s session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.by == nil {
		e.by = map[string]time.Time{}
	}
	if len(e.by) >= maxEnded {
		first, now := "", time.Now()
		for id, ends := range e.by {
			switch {
			case !now.Before(ends):
				delete(e.by, id)
			case first == "" || ends.Before(e.by[first]):
				first = id
			}
		}
		if len(e.by) >= maxEnded {
			delete(e.by, first)
		}
	}
	e.by[s.id] = s.ends
}

func (e *endedSessions) has(s session) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.by[s.id]
	return ok
}
