package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
)

// refusing is a receiver that refuses the events for good.
func refusing(t testing.TB, bad ...int64) (*receiver, destination) {
	r := newReceiver(t)
	r.answers(func(ids []int64) int {
		if slices.ContainsFunc(ids, func(id int64) bool { return slices.Contains(bad, id) }) {
			return http.StatusUnprocessableEntity
		}
		return http.StatusOK
	})
	return r, httpAt(t, r)
}

// startHook starts the pipeline of a dead-letter hook.
func startHook(t testing.TB, b *postgres.Buffer, s sink.Sink) *process {
	t.Helper()
	return start(t, b.DeadLetterQueue(), s, func(c *pipeline.Config) { c.NeverBury, c.Workers, c.MaxWaiting = true, 1, math.MaxInt })
}

func (d *database) unnotified(t testing.TB) int {
	return queryValue[int](t, d, "SELECT count(*) FROM outbox_dead_letters WHERE notified_at IS NULL")
}

func (d *database) expectNotified(t testing.TB, deadLetters int) {
	t.Helper()
	testserver.Eventually(t, func() error {
		all, unnotified := queryValue[int](t, d, "SELECT count(*) FROM outbox_dead_letters"), d.unnotified(t)
		if all != deadLetters || unnotified > 0 {
			return fmt.Errorf("%d dead letters, %d of them unnotified; want %d, none unnotified", all, unnotified, deadLetters)
		}
		return nil
	})
}

// Each dead letter reaches the hook, with all that is known of it.
func TestHook_NotifiedOfEveryDeadLetter(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	ids := d.insert(t, "orders", 500)
	bad := []int64{ids[0], ids[7], ids[499]}
	_, to := refusing(t, bad...)
	url := testserver.SharedRedis(t)
	hook := redisAt(t, url)
	b := d.buffer(t, "relay")
	start(t, b, to, nil)
	startHook(t, b, hook)
	d.expectNotified(t, len(bad))
	d.expectDrained(t)
	notified := hook.arrived(t, "orders")
	slices.Sort(notified)
	if !slices.Equal(notified, bad) {
		t.Errorf("the hook was notified of %v, want %v", notified, bad)
	}
	entries, err := redisClient(t, url).XRange(t.Context(), "orders", "-", "+").Result()
	testkit.NoError(t, err)
	for _, e := range entries {
		if e.Values["dead_letter"] == nil {
			t.Errorf("the hook was not sent why event %v died: %v", e.Values["id"], e.Values)
		}
	}
}

// A hook that is down loses nothing and holds up nothing; what it refuses it is
// notified again, and of the other dead letters meanwhile.
func TestHook_Fails(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	ids := d.insert(t, "orders", 400)
	bad := []int64{ids[3], ids[5], ids[200]}
	_, to := refusing(t, bad...)
	ear := newReceiver(t)
	ear.answers(func([]int64) int { return http.StatusInternalServerError })
	hook := httpAt(t, ear)
	b := d.buffer(t, "relay")
	p := start(t, b, to, nil)
	startHook(t, b, hook)
	testserver.Eventually(t, func() error {
		if n := len(to.arrived(t, "orders")); n < len(ids)-len(bad) || d.unnotified(t) < len(bad) {
			return fmt.Errorf("%d events arrived while the hook is down, %d dead letters are unnotified", n, d.unnotified(t))
		}
		return nil
	})
	p.expectReady(t)
	testkit.Equal(t, "unnotified", d.unnotified(t), len(bad))

	// It is up and refuses the dead letter of one event.
	var refused atomic.Int64
	ear.answers(func(ids []int64) int {
		if slices.Contains(ids, bad[1]) {
			refused.Add(1)
			return http.StatusBadRequest
		}
		return http.StatusOK
	})
	testserver.Eventually(t, func() error {
		if d.unnotified(t) != 1 || refused.Load() < 4 {
			return fmt.Errorf("%d dead letters are unnotified, one was refused %d times", d.unnotified(t), refused.Load())
		}
		return nil
	})
	testkit.Equal(t, "dead letters", queryValue[int](t, d, "SELECT count(*) FROM outbox_dead_letters"), len(bad))

	ear.answers(nil)
	d.expectNotified(t, len(bad))
	notified := hook.arrived(t, "orders")
	slices.Sort(notified)
	if !slices.Equal(notified, bad) {
		t.Errorf("the hook took %v, want %v", notified, bad)
	}
	d.expectDrained(t)
}

// Two processes, one of which dies between the notification and its settle: the hook is notified of
// every dead letter, at least once.
func TestHook_SurvivesAKilledProcess(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	ids := d.insert(t, "orders", 40)
	_, to := refusing(t, ids...)
	hook := redisAt(t, testserver.SharedRedis(t))

	// The first process claims dead letters, notifies the hook, and ends.
	first := d.buffer(t, "first")
	died := make(chan struct{})
	var deaths atomic.Int64
	fatal := &sendHook{hook, func(ctx context.Context, _ *buffer.Batch, next func() error) error {
		if deaths.Add(1) > 1 {
			return next()
		}
		if err := next(); err != nil {
			t.Errorf("notifying the hook: %v", err)
		}
		close(died)
		<-ctx.Done() // its lease ends, and it does not settle
		return ctx.Err()
	}}
	few := func(c *pipeline.Config) { c.MaxAttempts = 2 }
	p, h := start(t, first, to, few), startHook(t, first, fatal)
	<-died
	h.halt() // what a kill leaves: notified, and not settled
	<-h.ended
	p.stop(t)
	d.exec(t, "UPDATE outbox_batches SET due_at = clock_timestamp() - interval '1s'")

	second := d.buffer(t, "second")
	start(t, second, to, few)
	startHook(t, second, hook)
	d.expectNotified(t, len(ids))
	d.expectDrained(t)
	notified := hook.arrived(t, "orders")
	slices.Sort(notified)
	if notified = slices.Compact(notified); !slices.Equal(notified, ids) {
		t.Errorf("the hook was notified of %v, want %v", notified, ids)
	}
	if h.err == nil {
		t.Error("the process that was halted says that it finished")
	}
	h.err = nil // it was expected
}

// The hook is notified of dead letters from before there was a hook; those that were closed
// are not.
func TestHook_AddedLater(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	ids := d.insert(t, "orders", 10)
	_, to := refusing(t, ids...)
	p := start(t, d.buffer(t, "first"), to, nil)
	testserver.Eventually(t, func() error {
		if n := d.unnotified(t); n < len(ids) {
			return fmt.Errorf("%d of %d are buried", n, len(ids))
		}
		return nil
	})
	p.stop(t)
	d.exec(t, "UPDATE outbox_dead_letters SET closed_at = now() WHERE event_id = $1", ids[4])
	hook := redisAt(t, testserver.SharedRedis(t))
	b := d.buffer(t, "second")
	start(t, b, to, nil)
	startHook(t, b, hook)
	testserver.Eventually(t, func() error {
		if n := d.unnotified(t); n != 1 {
			return fmt.Errorf("%d dead letters are unnotified; want only the closed one", n)
		}
		return nil
	})
	expectOnce(t, hook.arrived(t, "orders"), without(ids, ids[4]))
}

// A dead letter is replayed: it goes out under its old id, or is buried again.
func TestHook_Replay(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	ids := d.insert(t, "orders", 30)
	r, to := refusing(t, ids[3], ids[20])
	b := d.buffer(t, "relay")
	start(t, b, to, nil)
	testserver.Eventually(t, func() error {
		if dead, _ := d.dead(t); len(dead) != 2 {
			return errors.New("want two dead letters")
		}
		return nil
	})
	d.expectDrained(t)
	r.answers(func(refused []int64) int {
		if slices.Contains(refused, ids[20]) {
			return http.StatusUnprocessableEntity
		}
		return http.StatusOK
	})
	n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 100)
	testkit.NoError(t, err)
	testkit.Equal(t, "replayed", n, 2)
	testserver.Eventually(t, func() error {
		if n := queryValue[int](t, d, "SELECT count(*) FROM outbox_dead_letters WHERE closed_at IS NULL"); n != 1 {
			return fmt.Errorf("%d open dead letters; want one", n)
		}
		return nil
	})
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), without(ids, ids[20]))
	dead, _ := d.dead(t)
	if !slices.Equal(dead, []int64{ids[3], ids[20], ids[20]}) {
		t.Errorf("dead letters of %v, want the one that died twice twice", dead)
	}
}
