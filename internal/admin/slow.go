package admin

import (
	"context"
	"sync"
	"time"
)

// maxSlowAge is how long a value is reused that changes slowly.
const maxSlowAge = time.Minute

// slow is the latest value of something that changes slowly.
type slow[T any] struct {
	mu    sync.Mutex
	at    time.Time
	value T
	err   error
}

// get returns a value no older than maxSlowAge. A failure is not reused.
func (s *slow[T]) get(ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.IsZero() || s.err != nil || time.Since(s.at) > maxSlowAge {
		s.value, s.err = read(ctx)
		s.at = time.Now()
	}
	return s.value, s.err
}

// readSlow reads a value of each pipeline concurrently; nil where there is none, for which of returns nil.
func readSlow[T any](ctx context.Context, all snapshots, of func(*snapshot) (*slow[T], func(context.Context) (T, error))) []func() (T, error) {
	values := make([]func() (T, error), len(all))
	var wait sync.WaitGroup
	for i, s := range all {
		kept, read := of(s)
		if kept == nil {
			continue
		}
		wait.Go(func() {
			value, err := kept.get(ctx, read)
			values[i] = func() (T, error) { return value, err }
		})
	}
	wait.Wait()
	return values
}
