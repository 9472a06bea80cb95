package pipeline_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
)

// protocolRoutes are the sinks of TestProtocol_Sinks, with small batches.
var protocolRoutes = []buffer.Route{
	{Sink: "all", BatchSize: 4},
	{Sink: "both", BatchSize: 3, Match: []string{"orders", "customers"}},
	{Sink: "one", BatchSize: 5, Match: []string{"orders"}},
}

// TestProtocol_Sinks is TestProtocol for several sinks of a table: routes hand batches over or leave them to be taken over, are cut
// off, and add to what waits; dead letters are replayed while another sink still has the event. Each event ends up once at
// every sink that takes it, or is a dead letter of it.
func TestProtocol_Sinks(t *testing.T) {
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimRange, buffer.ClaimStamp} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			testProtocolOfSinks(t, mode)
		})
	}
}

func testProtocolOfSinks(t *testing.T, mode buffer.ClaimMode) {
	t.Helper()
	d, url := newDatabase(t), testserver.SharedRedis(t)
	client := redisClient(t, url)
	var buffers []*postgres.Buffer
	for _, owner := range []string{"a", "b"} {
		b, err := postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders", Owner: owner, Claim: mode, Sinks: protocolRoutes})
		testkit.NoError(t, err)
		t.Cleanup(func() { testkit.NoError(t, b.Close()) })
		buffers = append(buffers, b)
	}
	var plays atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		w := &routedModel{
			buffers: buffers, to: map[string]sink.Sink{}, committed: map[string]int{}, buried: map[string]int{},
			exec: func(sql string, args ...any) {
				if _, err := d.app.Exec(t.Context(), sql, args...); err != nil {
					t.Fatal(err)
				}
			},
			count: func(sql string) (n int) {
				if err := d.app.QueryRow(t.Context(), sql).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n
			},
		}
		for _, table := range []string{"outbox_events", "outbox_batches", "outbox_dead_letters"} {
			w.exec("DELETE FROM " + table)
		}
		prefix := fmt.Sprintf("play%s%d:", mode, plays.Add(1))
		for _, r := range protocolRoutes {
			to, err := redissink.New(redissink.Config{URL: url, Stream: prefix + r.Sink + ":{topic}"})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := to.Close(); err != nil {
					t.Error(err)
				}
			}()
			w.to[r.Sink] = to
		}
		t.Repeat(map[string]func(*rapid.T){
			"insert":        w.commit,
			"route":         w.route,
			"route more":    w.route,
			"cut off":       w.cutOff,
			"route due":     w.routeDue,
			"take over":     w.takeOver,
			"take over too": w.takeOver,
			"send":          w.send,
			"settle":        w.settle,
			"bury":          w.bury,
			"mark":          w.mark,
			"halve":         w.halve,
			"put back":      w.putBack,
			"forget":        func(t *rapid.T) { w.drop(w.holder(t)) },
			"lapse":         w.lapse,
			"replay":        w.replay,
		})
		w.drain(t)
		for _, h := range w.holders { // those that were stopped all the while
			if w.sendBy(t, h); h.sent {
				w.settleBy(t, h, buffer.Outcome{Verdict: buffer.Delivered})
			}
		}
		for _, r := range protocolRoutes {
			w.check(t, client, prefix, r.Sink)
		}
	})
}

// routedHolder has taken a batch of a sink, whether it still owns the lease or not.
type routedHolder struct {
	sink  string
	queue buffer.Queue
	batch *buffer.Lease
	sent  bool
}

// routedModel is one sequence of operations.
type routedModel struct {
	buffers   []*postgres.Buffer
	to        map[string]sink.Sink
	exec      func(sql string, args ...any)
	count     func(sql string) int
	holders   []*routedHolder
	committed map[string]int // by sink
	buried    map[string]int // by sink, less those replayed
}

func (w *routedModel) check(t *rapid.T, client *redis.Client, prefix, name string) {
	arrived, seen := 0, map[string]bool{}
	for _, topic := range []string{"orders", "customers", "others"} {
		entries, err := client.XRange(t.Context(), prefix+name+":"+topic, "-", "+").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			arrived++
			seen[fmt.Sprint(e.Values["id"])] = true
		}
	}
	dead := w.count("SELECT count(*) FROM outbox_dead_letters WHERE closed_at IS NULL AND sink = '" + name + "'")
	if arrived+dead != w.committed[name] || len(seen) != arrived || dead != w.buried[name] {
		t.Fatalf("sink %s takes %d events: %d arrived, %d of them different ones, %d are dead letters, want %d", name, w.committed[name], arrived, len(seen), dead, w.buried[name])
	}
}

func (w *routedModel) commit(t *rapid.T) {
	for range rapid.IntRange(1, 6).Draw(t, "events") {
		topic := rapid.SampledFrom([]string{"orders", "customers", "others"}).Draw(t, "topic")
		w.exec("INSERT INTO outbox_events (topic, payload) VALUES ($1, '{}')", topic)
		for _, r := range protocolRoutes {
			if len(r.Match) == 0 || slices.Contains(r.Match, topic) {
				w.committed[r.Sink]++
			}
		}
	}
}

func (w *routedModel) process(t *rapid.T) *postgres.Buffer {
	return rapid.SampledFrom(w.buffers).Draw(t, "process")
}

func (w *routedModel) route(t *rapid.T) {
	b := w.process(t)
	routed, err := b.Route(t.Context(), rapid.IntRange(1, 6).Draw(t, "limit"), time.Hour, func(string) bool { return rapid.IntRange(0, 2).Draw(t, "take") == 0 })
	if err != nil {
		t.Fatal(err)
	}
	if routed == nil {
		return
	}
	for _, l := range routed.Leases {
		w.holders = append(w.holders, &routedHolder{sink: l.Sink, queue: b.Sink(l.Sink), batch: l.Lease})
	}
}

// cutOff: a process ends between its claim and its route.
func (w *routedModel) cutOff(t *rapid.T) {
	if _, err := w.process(t).Claim(t.Context(), rapid.IntRange(1, 6).Draw(t, "limit"), time.Hour); err != nil {
		t.Fatal(err)
	}
}

func (w *routedModel) routeDue(t *rapid.T) {
	if _, err := w.process(t).RouteDue(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
}

func (w *routedModel) takeOver(t *rapid.T) {
	name := rapid.SampledFrom(protocolRoutes).Draw(t, "sink").Sink
	w.take(t, w.process(t).Sink(name), name)
}

// take takes over a batch. One that may have killed its owners is worked on at once: who is blamed is not the question here.
func (w *routedModel) take(t *rapid.T, q buffer.Queue, name string) bool {
	for _, due := range []buffer.Due{buffer.DueRetry, buffer.DueSuspect} {
		batch, err := q.TakeOver(t.Context(), time.Hour, due)
		switch {
		case err != nil:
			t.Fatal(err)
		case batch == nil:
			continue
		case due == buffer.DueSuspect || batch.DeliveryRecorded() || len(batch.Events) == 0:
			w.work(t, q, name, batch)
		default:
			w.holders = append(w.holders, &routedHolder{sink: name, queue: q, batch: batch})
		}
		return true
	}
	return false
}

func (w *routedModel) work(t *rapid.T, q buffer.Queue, name string, batch *buffer.Lease) {
	worker := delivery.NewWorker(w.to[name], q, delivery.Config{
		MaxAttempts: 10, Backoff: delivery.Backoff{Initial: time.Millisecond, Max: time.Millisecond, Multiplier: 1},
		Observer: noObserver{}, Log: slog.New(slog.DiscardHandler),
	})
	if _, err := worker.Work(t.Context(), t.Context(), batch, nil, nil); err != nil {
		t.Fatal(err)
	}
}

func (w *routedModel) holder(t *rapid.T) *routedHolder {
	if len(w.holders) == 0 {
		t.Skip("nobody has a batch")
	}
	return rapid.SampledFrom(w.holders).Draw(t, "holder")
}

func (w *routedModel) drop(h *routedHolder) {
	w.holders = slices.DeleteFunc(w.holders, func(other *routedHolder) bool { return other == h })
}

func (w *routedModel) send(t *rapid.T) {
	h := w.holder(t)
	if w.sendBy(t, h); !h.sent {
		w.drop(h)
	}
}

func (w *routedModel) sendBy(t *rapid.T, h *routedHolder) {
	switch err := w.to[h.sink].Send(t.Context(), &h.batch.Batch); {
	case err == nil:
		h.sent = true
	case !errors.Is(err, sink.ErrFenced):
		t.Fatal(err)
	}
}

// settleBy reports whether the owner still had its lease; otherwise it changes nothing.
func (w *routedModel) settleBy(t *rapid.T, h *routedHolder, outcomes ...buffer.Outcome) bool {
	err := h.queue.Settle(t.Context(), h.batch, outcomes)
	if err != nil && !errors.Is(err, buffer.ErrLeaseLost) {
		t.Fatal(err)
	}
	return err == nil
}

func (w *routedModel) settle(t *rapid.T) {
	h := w.holder(t)
	if !h.sent {
		t.Skip("it was not sent")
	}
	w.settleBy(t, h, buffer.Outcome{Verdict: buffer.Delivered})
	w.drop(h)
}

func (w *routedModel) mark(t *rapid.T) {
	h := w.holder(t)
	if !h.sent {
		t.Skip("it was not sent")
	}
	if err := h.queue.MarkDelivered(t.Context(), h.batch, h.batch.IDs()); err != nil && !errors.Is(err, buffer.ErrLeaseLost) {
		t.Fatal(err)
	}
	w.drop(h)
}

// bury: the sink refuses some events for good, and the others are tried again. Nobody has sent the batch before.
func (w *routedModel) bury(t *rapid.T) {
	h := w.holder(t)
	if h.sent || h.batch.LeaseNo > 1 || len(h.batch.Origins) > 0 {
		t.Skip("it may have been sent")
	}
	ids := h.batch.IDs()
	n := rapid.IntRange(1, len(ids)).Draw(t, "dead")
	outcomes := []buffer.Outcome{{Verdict: buffer.Dead, IDs: ids[:n], Attempts: 1, Error: "refused"}}
	if n < len(ids) {
		outcomes = append(outcomes, buffer.Outcome{Verdict: buffer.Retry, IDs: ids[n:], GroupID: buffer.NewGroupID()})
	}
	if w.settleBy(t, h, outcomes...) {
		w.buried[h.sink] += n
	}
	w.drop(h)
}

func (w *routedModel) halve(t *rapid.T) {
	h := w.holder(t)
	if h.sent || len(h.batch.Events) < 2 {
		t.Skip("it is not halved")
	}
	ids := h.batch.IDs()
	at := rapid.IntRange(1, len(ids)-1).Draw(t, "at")
	part := func(ids []int64) buffer.Outcome {
		return buffer.Outcome{Verdict: buffer.Retry, IDs: ids, GroupID: buffer.NewGroupID()}
	}
	w.settleBy(t, h, part(ids[:at]), part(ids[at:]))
	w.drop(h)
}

// putBack: the answer was lost, on the way there or on the way back.
func (w *routedModel) putBack(t *rapid.T) {
	h := w.holder(t)
	w.settleBy(t, h, buffer.Outcome{Verdict: buffer.Retry, GroupID: h.batch.GroupID, Outages: h.batch.Outages + 1})
	w.drop(h)
}

const overdueSQL = "UPDATE outbox_batches SET due_at = clock_timestamp() - interval '1s'"

// lapse: all leases are over.
func (w *routedModel) lapse(t *rapid.T) {
	w.exec(overdueSQL)
	w.takeOver(t)
}

func (w *routedModel) replay(t *rapid.T) {
	before := map[string]int{}
	open := func(name string) int {
		return w.count("SELECT count(*) FROM outbox_dead_letters WHERE closed_at IS NULL AND sink = '" + name + "'")
	}
	for _, r := range protocolRoutes {
		before[r.Sink] = open(r.Sink)
	}
	if _, err := w.process(t).Replay(t.Context(), buffer.DeadFilter{}, rapid.IntRange(1, 5).Draw(t, "limit")); err != nil {
		t.Fatal(err)
	}
	for _, r := range protocolRoutes {
		w.buried[r.Sink] -= before[r.Sink] - open(r.Sink)
	}
}

// drain lets one process work until nothing is left.
func (w *routedModel) drain(t *rapid.T) {
	b := w.buffers[0]
	for range 1000 {
		w.exec(overdueSQL)
		routed, err := b.Route(t.Context(), 1000, time.Hour, func(string) bool { return false })
		if err == nil && routed == nil {
			routed, err = b.RouteDue(t.Context(), time.Hour)
		}
		if err != nil {
			t.Fatal(err)
		}
		busy := routed != nil
		for _, r := range protocolRoutes {
			q := b.Sink(r.Sink)
			for _, due := range []buffer.Due{buffer.DueRetry, buffer.DueSuspect} {
				batch, err := q.TakeOver(t.Context(), time.Hour, due)
				if err != nil {
					t.Fatal(err)
				}
				if batch != nil {
					busy = true
					w.work(t, q, r.Sink, batch)
				}
			}
		}
		if !busy && w.count("SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_batches)") == 0 {
			return
		}
	}
	t.Fatalf("%d events are left", w.count("SELECT count(*) FROM outbox_events"))
}
