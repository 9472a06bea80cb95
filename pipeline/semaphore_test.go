package pipeline

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
)

func TestSemaphore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var (
			s    = &semaphore{size: 1}
			came []int
		)
		if _, ok := s.acquire(t.Context()); !ok {
			t.Fatal("the first slot is taken")
		}
		gone, leave := context.WithCancel(t.Context())
		for i := range 4 {
			ctx := t.Context()
			if i == 1 {
				ctx = gone
			}
			go func() {
				if _, ok := s.acquire(ctx); ok {
					came = append(came, i)
				} else {
					came = append(came, -i)
				}
			}()
			synctest.Wait()
		}
		step := func(what string, do func(), want ...int) {
			t.Helper()
			came = nil
			do()
			synctest.Wait()
			slices.Sort(came)
			if !slices.Equal(came, want) {
				t.Errorf("%s: %v came, want %v", what, came, want)
			}
		}
		step("nothing is free", func() {})
		step("one gives up", leave, -1)
		step("the first goes", s.release, 0)
		step("there is one more", func() { s.resize(2) }, 2)
		step("there is one fewer", func() { s.resize(1); s.release() })
		step("closed", s.close, -3)
		s.release()
		if _, ok := s.acquire(t.Context()); !ok {
			t.Error("a closed semaphore with a free slot gave none")
		}
		if _, ok := s.acquire(t.Context()); ok {
			t.Error("a closed semaphore without a free slot gave one")
		}
		s.release()
		if s.taken != 0 || len(s.waiting) != 0 {
			t.Errorf("%d are taken, %d wait", s.taken, len(s.waiting))
		}
	})
}

// A slot that is released as its waiter cancels is not lost.
func TestSemaphore_ReleasesALateSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &semaphore{size: 1}
		for range 200 {
			s.acquire(t.Context())
			ctx, leave := context.WithCancel(t.Context())
			go func() {
				if release, ok := s.acquire(ctx); ok {
					release()
				}
			}()
			synctest.Wait()
			leave() // cancelled, and not yet returned
			s.release()
			synctest.Wait()
			if s.taken != 0 {
				t.Fatalf("%d slots leaked", s.taken)
			}
		}
	})
}
