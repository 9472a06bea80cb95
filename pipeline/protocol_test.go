package pipeline_test

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/outbox/sqlite"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
)

// TestProtocol plays random sequences of what owners of batches do, one step at a
// time, on a real buffer and a real Redis: claim, send, settle, mark, halve, put
// back, die between any two steps, lose the lease without noticing, and return
// later. Each event ends up in its stream exactly once.
func TestProtocol(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T, buffer.ClaimMode) protocol{"postgres": protocolOnPostgres, "sqlite": protocolOnSQLite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, mode := range []buffer.ClaimMode{buffer.ClaimRange, buffer.ClaimStamp} {
				t.Run(string(mode), func(t *testing.T) {
					t.Parallel()
					p := open(t, mode)
					testProtocol(t, p)
					for _, b := range p.buffers {
						testkit.Equal(t, "claimed by", b.ClaimMode(), mode)
					}
				})
			}
		})
	}
}

func protocolOnPostgres(t *testing.T, mode buffer.ClaimMode) protocol {
	d := newDatabase(t)
	buf := func(owner string) claimedBy {
		b, err := postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders", Owner: owner, Claim: mode})
		testkit.NoError(t, err)
		t.Cleanup(func() { testkit.NoError(t, b.Close()) })
		return b
	}
	exec := func(t *rapid.T, sql string, args ...any) {
		if _, err := d.app.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	return protocol{
		buffers: []claimedBy{buf("a"), buf("b")},
		insert: func(t *rapid.T, topic string) {
			exec(t, "INSERT INTO outbox_events (topic, payload) VALUES ($1, '{}')", topic)
		},
		exec:    func(t *rapid.T, sql string) { exec(t, sql) },
		overdue: "UPDATE outbox_batches SET due_at = clock_timestamp() - interval '1s'",
		left:    func() int { return queryValue[int](t, d, "SELECT count(*) FROM outbox_events") },
		dead:    func() int { return queryValue[int](t, d, "SELECT count(*) FROM outbox_dead_letters") },
	}
}

func protocolOnSQLite(t *testing.T, mode buffer.ClaimMode) protocol {
	f := newFile(t)
	buf := func(owner string) claimedBy {
		b, err := sqlite.Open(sqlite.Config{URL: f.url, Pipeline: "orders", Owner: owner, Claim: mode})
		testkit.NoError(t, err)
		t.Cleanup(func() { testkit.NoError(t, b.Close()) })
		return b
	}
	exec := func(t *rapid.T, sql string, args ...any) {
		if _, err := f.app.ExecContext(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	return protocol{
		buffers: []claimedBy{buf("a"), buf("b")},
		insert: func(t *rapid.T, topic string) {
			exec(t, "INSERT INTO outbox_events (topic, payload) VALUES (?, '{}')", topic)
		},
		exec:    func(t *rapid.T, sql string) { exec(t, sql) },
		overdue: "UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 seconds')",
		left:    func() int { return int(f.queryValue(t, "SELECT count(*) FROM outbox_events")) },
		dead:    func() int { return int(f.queryValue(t, "SELECT count(*) FROM outbox_dead_letters")) },
	}
}

// claimedBy is a buffer that says how it is claimed.
type claimedBy interface {
	buffer.Queue
	ClaimMode() buffer.ClaimMode
}

// protocol is a buffer, seen by two processes, and how to get at it.
type protocol struct {
	buffers []claimedBy
	insert  func(t *rapid.T, topic string)
	exec    func(t *rapid.T, sql string)
	overdue string
	left    func() int
	dead    func() int
}

func testProtocol(t *testing.T, p protocol) {
	t.Helper()
	url := testserver.SharedRedis(t)
	client := redisClient(t, url)
	var plays atomic.Int64
	done := steps{}
	rapid.Check(t, func(t *rapid.T) {
		for _, table := range []string{"outbox_events", "outbox_batches", "outbox_dead_letters"} {
			p.exec(t, "DELETE FROM "+table)
		}
		prefix := fmt.Sprintf("play%d:", plays.Add(1))
		to, err := redissink.New(redissink.Config{URL: url, Stream: prefix + "{topic}"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := to.Close(); err != nil {
				t.Error(err)
			}
		}()
		w := &protocolModel{protocol: p, to: to}
		w.processes = processes{buffers: []buffer.Queue{p.buffers[0], p.buffers[1]}, running: [2]int{0, 1}}
		t.Repeat(done.counted(map[string]func(*rapid.T){ // rapid draws the first names most
			"attempt":       w.send,
			"acknowledge":   w.settle,
			"and only mark": w.mark,
			"insert":        w.commit,
			"claim":         w.claim,
			"take over":     w.takeOver,
			"halve":         w.halve,
			"put back":      w.putBack,
			"die":           w.die,
			"forget":        func(t *rapid.T) { w.drop(w.holder(t, anyHolder)) },
			"lapse":         w.lapse,
			"lapse too":     w.lapse, // it is what all this is about
		}))
		w.drain(t)
		for _, h := range w.holders { // those that were stopped all the while
			w.sendBy(t, h)
			if h.sent {
				w.settleBy(t, h, buffer.Outcome{Verdict: buffer.Delivered})
			}
		}
		arrived := 0
		seen := map[string]int{}
		for _, topic := range topics {
			entries, err := client.XRange(t.Context(), prefix+topic, "-", "+").Result()
			if err != nil {
				t.Fatal(err)
			}
			arrived += len(entries)
			for _, e := range entries {
				seen[fmt.Sprint(e.Values["id"])]++
			}
		}
		dead := w.dead()
		if arrived+dead != w.committed || len(seen) != arrived {
			t.Fatalf("%d events were committed, %d arrived, %d of them different ones, %d were buried", w.committed, arrived, len(seen), dead)
		}
		if dead > w.blameable {
			t.Fatalf("%d events were buried, %d died alone five times", dead, w.blameable)
		}
	})
	done.expectAll(t)
}

// topics go to a stream each.
var topics = []string{"orders", "customers"}

// protocolModel is one sequence of operations.
type protocolModel struct {
	protocol
	processes
	to        sink.Sink
	committed int
	blameable int // events that died alone five times
}

func (w *protocolModel) commit(t *rapid.T) {
	for range rapid.IntRange(1, 6).Draw(t, "events") {
		w.insert(t, rapid.SampledFrom(topics).Draw(t, "topic"))
		w.committed++
	}
}

func (w *protocolModel) claim(t *rapid.T) { w.hold(w.processes.claim(t, 2, 6)) }

func (w *protocolModel) hold(h *leaseHolder) {
	if h != nil {
		w.holders = append(w.holders, h)
	}
}

// lapse: all leases are over, and a batch gets a new owner. The old one does not
// know.
func (w *protocolModel) lapse(t *rapid.T) {
	w.exec(t, w.overdue)
	w.takeOver(t)
}

func (w *protocolModel) takeOver(t *rapid.T) {
	h := w.processes.takeOver(t)
	if h != nil && (h.batch.DeliveryRecorded() || len(h.batch.Events) == 0 || h.batch.NotRead != nil) { // settled, not sent
		w.blame(h)
		if _, err := w.worker(h.buf).Work(t.Context(), t.Context(), h.batch, nil, nil); err != nil {
			t.Fatal(err)
		}
		return
	}
	w.hold(h)
}

func (w *protocolModel) worker(buf buffer.Queue) *delivery.Worker {
	return delivery.NewWorker(w.to, buf, delivery.Config{
		MaxAttempts: 10, Backoff: delivery.Backoff{Initial: time.Millisecond, Max: time.Millisecond, Multiplier: 1},
		Observer: noObserver{}, Log: slog.New(slog.DiscardHandler),
	})
}

// holder draws one that has taken a batch of a kind. It skips the step if there is none.
func (w *protocolModel) holder(t *rapid.T, is func(*leaseHolder) bool) *leaseHolder {
	h := w.processes.holder(t, is)
	if h == nil {
		t.Skip("nobody has such a batch")
	}
	return h
}

func (w *protocolModel) send(t *rapid.T) {
	h := w.holder(t, anyHolder)
	w.sendBy(t, h)
	if !h.sent {
		w.drop(h)
	}
}

func (w *protocolModel) sendBy(t *rapid.T, h *leaseHolder) {
	switch err := w.to.Send(t.Context(), &h.batch.Batch); {
	case err == nil:
		h.sent = true
	case !errors.Is(err, sink.ErrFenced):
		t.Fatal(err)
	}
}

// settleBy settles. An owner that lost its lease changes nothing.
func (w *protocolModel) settleBy(t *rapid.T, h *leaseHolder, outcomes ...buffer.Outcome) {
	err := h.buf.Settle(t.Context(), h.batch, outcomes)
	if err != nil && !errors.Is(err, buffer.ErrLeaseLost) {
		t.Fatal(err)
	}
}

func (w *protocolModel) settle(t *rapid.T) {
	h := w.holder(t, wasSent)
	w.settleBy(t, h, buffer.Outcome{Verdict: buffer.Delivered})
	w.drop(h)
}

func (w *protocolModel) mark(t *rapid.T) {
	h := w.holder(t, wasSent)
	err := h.buf.MarkDelivered(t.Context(), h.batch, h.batch.IDs())
	if err != nil && !errors.Is(err, buffer.ErrLeaseLost) {
		t.Fatal(err)
	}
	w.drop(h)
}

// halve: as a batch that was started too often, whether a former owner sent it or
// not.
func (w *protocolModel) halve(t *rapid.T) {
	var whole []*leaseHolder
	for _, h := range w.holders {
		if !h.sent && len(h.batch.Events) > 1 {
			whole = append(whole, h)
		}
	}
	if len(whole) == 0 {
		t.Skip("no batch to halve")
	}
	h := whole[len(whole)-1] // mostly it is still its owner
	ids := h.batch.IDs()
	at := rapid.IntRange(1, len(ids)-1).Draw(t, "at")
	part := func(ids []int64) buffer.Outcome {
		return buffer.Outcome{Verdict: buffer.Retry, IDs: ids, GroupID: buffer.NewGroupID()}
	}
	w.settleBy(t, h, part(ids[:at]), part(ids[at:]))
	w.drop(h)
}

// putBack: the answer was lost, on the way there or on the way back.
func (w *protocolModel) putBack(t *rapid.T) {
	h := w.holder(t, anyHolder)
	w.settleBy(t, h, buffer.Outcome{Verdict: buffer.Retry, GroupID: h.batch.GroupID, Outages: h.batch.Outages + 1})
	w.drop(h)
}

// drain lets one process work until nothing is left. It is killed no more, and buries only what was killed alone before.
func (w *protocolModel) drain(t *rapid.T) {
	w.endProcess(t, 0)
	worker := w.worker(w.processes.buffers[0])
	for range 1000 {
		w.exec(t, w.overdue)
		h := w.next(t)
		if h == nil {
			if w.left() == 0 {
				return
			}
			continue // a late one, that a sweep finds
		}
		w.blame(h)
		if _, err := worker.Work(t.Context(), t.Context(), h.batch, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatalf("%d events are left", w.left())
}

// blame counts the batches that may be buried.
func (w *protocolModel) blame(h *leaseHolder) {
	if w.blamed(h.batch) && len(h.batch.Events) == 1 {
		w.blameable++
	}
}

type noObserver struct{}

func (noObserver) Sent(*buffer.Lease, time.Duration)                            {}
func (noObserver) Settled(*buffer.Lease, []buffer.Outcome, bool, time.Duration) {}
func (noObserver) Recovered(string)                                             {}
func (noObserver) Accepts()                                                     {}
func (noObserver) Hanging(int)                                                  {}
