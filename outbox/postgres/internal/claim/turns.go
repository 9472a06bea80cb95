package claim

import (
	"context"
	"time"
)

// turns makes the claims by range of a process follow each other. The lock does that for all processes (see ledger.LockClaiming), but a claim
// that waits for it holds a connection, and then often finds nothing: a claim takes all events that are there, so it
// serves everybody who asked before it began.
type turns struct {
	// idle holds a value while no claim is under way. Its receiver owns emptied.
	idle chan struct{}
	// emptied is when the last claim began that left no event behind.
	emptied time.Time
}

func newTurns() *turns {
	t := &turns{idle: make(chan struct{}, 1)}
	t.idle <- struct{}{}
	return t
}

// take waits for the claims before this one. nil, nil: one of them left nothing behind. Otherwise the caller must end the turn.
func (t *turns) take(ctx context.Context) (*turn, error) {
	asked := time.Now()
	select {
	case <-t.idle:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if t.emptied.After(asked) {
		t.idle <- struct{}{}
		return nil, nil
	}
	return &turn{of: t, began: time.Now()}, nil
}

// turn is that of one claim.
type turn struct {
	of    *turns
	began time.Time
	ended bool
}

// end lets the next claim begin; it may be called again. emptied: this one left no event behind.
func (t *turn) end(emptied bool) {
	if t.ended {
		return
	}
	t.ended = true
	if emptied {
		t.of.emptied = t.began
	}
	t.of.idle <- struct{}{}
}
