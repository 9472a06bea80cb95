package admin

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// statusHealth is a pipeline whose status is read by a function.
type statusHealth struct {
	Health
	status func(ctx context.Context) (buffer.Status, error)
}

func (h statusHealth) Status(ctx context.Context) (buffer.Status, error) { return h.status(ctx) }

// TestSnapshots_Each: quick databases are read a few at a time, and those that do not respond hold up the others for a moment only.
func TestSnapshots_Each(t *testing.T) {
	t.Parallel()
	read := func(t *testing.T, status func(i int) func(ctx context.Context) (buffer.Status, error)) (took time.Duration, failed int) {
		t.Helper()
		var all snapshots
		for i := range 200 {
			all = append(all, newSnapshot(Pipeline{Health: statusHealth{status: status(i)}}))
		}
		began := time.Now()
		all.each(t.Context(), func(_ Pipeline, _ buffer.Status, _, err error) {
			if err != nil {
				failed++
			}
		})
		return time.Since(began), failed
	}
	t.Run("quick", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var now, most atomic.Int64
			took, failed := read(t, func(int) func(context.Context) (buffer.Status, error) {
				return func(context.Context) (buffer.Status, error) {
					n := now.Add(1)
					defer now.Add(-1)
					for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
						continue
					}
					time.Sleep(time.Millisecond) //nolint:forbidigo // in a synctest bubble
					return buffer.Status{}, nil
				}
			})
			testkit.Equal(t, "failed", failed, 0)
			testkit.Equal(t, "at once", most.Load(), readsAtOnce)
			testkit.Equal(t, "it takes", took, 200/readsAtOnce*time.Millisecond)
		})
	})
	t.Run("all but the last do not respond", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			took, failed := read(t, func(i int) func(context.Context) (buffer.Status, error) {
				return func(ctx context.Context) (buffer.Status, error) {
					if i == 199 {
						return buffer.Status{}, nil
					}
					<-ctx.Done()
					return buffer.Status{}, ctx.Err()
				}
			})
			testkit.Equal(t, "failed", failed, 199)
			if longest := statusTimeout + 200/readsAtOnce*slowRead; took > longest {
				t.Errorf("it takes %v; want at most %v", took, longest)
			}
		})
	})
}

// TestSnapshot_ClientLeaves: a status that was not read, because its reader has left, is read for the next one after a user's change.
func TestSnapshot_ClientLeaves(t *testing.T) {
	t.Parallel()
	reads := 0
	s := newSnapshot(Pipeline{Health: statusHealth{status: func(ctx context.Context) (buffer.Status, error) {
		reads++
		return buffer.Status{}, ctx.Err()
	}}})
	_, _, err := s.read(t.Context())
	testkit.NoError(t, err)
	s.changed.Store(true)
	left, cancel := context.WithCancel(t.Context())
	cancel()
	for reads < 2 { // it may see at once that nobody waits
		_, _, err = s.read(left)
		testkit.Equal(t, "without a reader", errors.Is(err, context.Canceled), true)
	}
	_, _, err = s.read(t.Context())
	testkit.NoError(t, err)
	testkit.Equal(t, "reads", reads, 3)
}
