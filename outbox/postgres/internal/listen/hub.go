package listen

import (
	"context"
	"sync"
)

// Hub is the connection that the listeners of one database share. It is open while one of them listens.
type Hub struct {
	// URL is the database.
	URL string

	mu      sync.Mutex
	session *session // nil: none, or it has ended
}

// serve listens to the commits of a table until ctx is done, the table is replaced, or an error.
func (h *Hub) serve(ctx context.Context, l *Listener, table string, tableOID int64, replaced <-chan struct{}) error {
	m := &member{Listener: l, table: table, tableOID: tableOID, ended: make(chan struct{})}
	s := h.join(ctx, m)
	err := errReplaced
	select {
	case <-m.ended:
		return m.err
	case <-replaced:
	case <-ctx.Done():
		err = ctx.Err()
	}
	h.leave(s, m)
	<-m.ended
	return err
}

// join adds a member to the session, which it begins if there is none.
func (h *Hub) join(ctx context.Context, m *member) *session {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session == nil {
		running, cancel := context.WithCancel(context.WithoutCancel(ctx))
		s := &session{hub: h, userTimeout: m.config.DB.UserTimeout(), members: map[*member]struct{}{}, cancel: cancel}
		h.session = s
		go s.run(running) // its last member waits for it
	}
	s := h.session
	s.members[m] = struct{}{}
	m.setInterrupt(s.interrupt)
	s.interrupt()
	return s
}

// leave asks the session to give a member up, and ends it with its last one.
func (h *Hub) leave(s *session, m *member) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.leaves = true
	for other := range s.members {
		if !other.leaves {
			s.interrupt()
			return
		}
	}
	s.cancel()
	if h.session == s { // who joins now needs another
		h.session = nil
	}
}

// end ends the session: err is why, for all of its members.
func (h *Hub) end(s *session, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session == s {
		h.session = nil
	}
	for m := range s.members {
		s.remove(m, err)
	}
}
