package claim

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// ask asks for a turn and reports it when it comes.
func (t *turns) ask(ctx context.Context) <-chan *turn {
	got := make(chan *turn, 1)
	go func() {
		turn, err := t.take(ctx)
		if err != nil {
			turn = nil
		}
		got <- turn
	}()
	synctest.Wait()
	return got
}

func TestTurns_Serves(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ first, second, third bool }{
		"each leaves events":     {},
		"the first leaves none":  {first: true},
		"the second leaves none": {second: true, third: true},
		"neither leaves any":     {first: true, second: true, third: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				turns := newTurns()
				first := <-turns.ask(t.Context())
				<-time.After(time.Millisecond)
				asked := []<-chan *turn{turns.ask(t.Context()), turns.ask(t.Context())}
				<-time.After(time.Millisecond)
				first.end(c.first) // it began before they asked: what they ask for may have come since
				synctest.Wait()
				var second *turn
				var other <-chan *turn
				select {
				case second = <-asked[0]:
					other = asked[1]
				case second = <-asked[1]:
					other = asked[0]
				default:
					t.Fatal("nobody has a turn")
				}
				if second == nil {
					t.Fatal("the claim that began before served one that asked later")
				}
				select {
				case <-other:
					t.Fatal("two claims at once")
				default:
				}
				second.end(c.second)
				if third := <-other; (third == nil) != c.third {
					t.Errorf("the third has a turn: %t, want %t", third != nil, !c.third)
				} else if third != nil {
					third.end(false)
				}
				last := <-turns.ask(t.Context()) // nobody keeps a turn
				last.end(false)
				last.end(true)
			})
		})
	}
}

func TestTurns_Cancelled(t *testing.T) {
	t.Parallel()
	turns := newTurns()
	turn, err := turns.take(t.Context())
	if turn == nil || err != nil {
		t.Fatalf("take returned %v, %v", turn, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if turn, err := turns.take(ctx); turn != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("take returned %v, %v; want context.Canceled", turn, err)
	}
}
