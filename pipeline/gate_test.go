package pipeline

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestGate_SuspectIsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGate()
		leave := mustEnter(t, g)
		alone, entered := async(g.alone), (chan func())(nil)
		synctest.Wait()
		if len(alone) > 0 {
			t.Fatal("a suspect is sent while another batch is in flight")
		}
		entered = async(g.enter)
		synctest.Wait()
		if len(entered) > 0 {
			t.Fatal("a batch is sent although a suspect waits: it could wait for ever")
		}
		leave()
		leaveAlone := <-alone
		synctest.Wait()
		if len(entered) > 0 {
			t.Fatal("a batch is sent while a suspect is in flight")
		}
		second := async(g.alone)
		synctest.Wait()
		leaveAlone()
		(<-entered)()
		(<-second)()
	})
}

// A suspect takes no more than half of the time, however many there are.
func TestGate_OthersHaveTheirTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGate()
		var began []time.Duration
		start := time.Now()
		for range 3 {
			leave := <-async(g.alone)
			began = append(began, time.Since(start))
			<-time.After(7 * time.Second)
			leave()
			mustEnter(t, g)()
		}
		for i, want := range []time.Duration{0, 14 * time.Second, 28 * time.Second} {
			if began[i] != want {
				t.Errorf("suspect %d was sent after %v, want %v", i, began[i], want)
			}
		}
	})
}

// A batch that does not end, because its database is away, lets the others go on.
func TestGate_LosesPatience(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGate()
		leave := mustEnter(t, g)
		alone := async(g.alone)
		synctest.Wait()
		for _, patience := range []time.Duration{minPatience, 2 * minPatience, 4 * minPatience} {
			began := time.Now()
			mustEnter(t, g)()
			if stood := time.Since(began); stood != patience {
				t.Errorf("the others stood still for %v, want %v", stood, patience)
			}
			<-time.After(patience - time.Nanosecond)
			mustEnter(t, g)() // their turn, of the same length
			<-time.After(time.Nanosecond)
			synctest.Wait()
		}
		leave()
		(<-alone)()
	})
}

func TestGate_EndsWithContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGate()
		leave := mustEnter(t, g)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan bool, 3)
		for _, wait := range []func(context.Context) (func(), bool){g.alone, g.alone, g.enter} {
			go func() { _, ok := wait(ctx); ended <- ok }()
			synctest.Wait()
		}
		cancel()
		for range 3 {
			if <-ended {
				t.Error("a batch is let in after the end")
			}
		}
		leave()
		(<-async(g.alone))()
		mustEnter(t, g)()
	})
}

// async waits at the gate in a goroutine. The result is how to leave.
func async(wait func(context.Context) (func(), bool)) chan func() {
	in := make(chan func(), 1)
	go func() {
		if leave, ok := wait(context.Background()); ok {
			in <- leave
		}
	}()
	return in
}

func mustEnter(t *testing.T, g *Gate) (leave func()) {
	t.Helper()
	leave, ok := g.enter(t.Context())
	if !ok {
		t.Fatal("a batch is not let in")
	}
	return leave
}
