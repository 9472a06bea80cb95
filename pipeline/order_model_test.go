package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/outbox/sqlite"
	"github.com/outboxrelay/relay/sink"
)

// orderedBuffer opens the buffer as a process with order: key would.
func (d *database) orderedBuffer(t testing.TB, owner string) *postgres.Buffer {
	t.Helper()
	b, err := postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders", Owner: owner, Connections: 12, Ordered: true})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	return b
}

func (f *file) orderedBuffer(t testing.TB, owner string) *sqlite.Buffer {
	t.Helper()
	b, err := sqlite.Open(sqlite.Config{URL: f.url, Pipeline: "orders", Owner: owner, Ordered: true})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	return b
}

// TestOrderProtocol plays random sequences of what applications, owners of batches and
// a sink do, one step at a time, on a real buffer. The events of a
// key always come to the sink in the order of their ids, unless their transactions
// overlapped, and none is lost.
func TestOrderProtocol(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		d := newDatabase(t)
		testOrderProtocol(t, orderedPlace{
			buffers: []buffer.Queue{d.orderedBuffer(t, "a"), d.orderedBuffer(t, "b")},
			exec: func(t *rapid.T, sql string) {
				if _, err := d.app.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			},
			overdue: "UPDATE outbox_batches SET due_at = clock_timestamp() - interval '1s'",
			begin: func(t *rapid.T) application {
				tx, err := d.app.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return application{
					insert: func(topic string, key *string) (id int64, err error) {
						return id, tx.QueryRow(t.Context(), "INSERT INTO outbox_events (topic, key, payload) VALUES ($1, $2, '{}') RETURNING id", topic, key).Scan(&id)
					},
					commit: func() error { return tx.Commit(t.Context()) },
					end: func() {
						if err := tx.Rollback(context.Background()); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
							t.Error(err)
						}
					},
				}
			},
			several: true,
			dead: func(t *rapid.T) []int64 {
				rows, err := d.app.Query(t.Context(), "SELECT event_id FROM outbox_dead_letters")
				if err != nil {
					t.Fatal(err)
				}
				ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
				if err != nil {
					t.Fatal(err)
				}
				return ids
			},
		})
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		f := newFile(t)
		testOrderProtocol(t, orderedPlace{
			buffers: []buffer.Queue{f.orderedBuffer(t, "a"), f.orderedBuffer(t, "b")},
			exec: func(t *rapid.T, sql string) {
				if _, err := f.app.ExecContext(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			},
			overdue: "UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 seconds')",
			begin: func(t *rapid.T) application {
				return application{
					insert: func(topic string, key *string) (id int64, err error) {
						r, err := f.app.ExecContext(t.Context(), "INSERT INTO outbox_events (topic, key, payload) VALUES (?, ?, '{}')", topic, key)
						if err != nil {
							return 0, err
						}
						return r.LastInsertId()
					},
					commit: func() error { return nil },
					end:    func() {},
				}
			},
			dead: func(t *rapid.T) (ids []int64) {
				rows, err := f.app.QueryContext(t.Context(), "SELECT event_id FROM outbox_dead_letters")
				if err != nil {
					t.Fatal(err)
				}
				defer rows.Close()
				for rows.Next() {
					var id int64
					if err := rows.Scan(&id); err != nil {
						t.Fatal(err)
					}
					ids = append(ids, id)
				}
				if err := rows.Err(); err != nil {
					t.Fatal(err)
				}
				return ids
			},
		})
	})
}

// orderedPlace is a buffer, seen by two processes, and how to get at it.
type orderedPlace struct {
	buffers []buffer.Queue // of two processes
	exec    func(t *rapid.T, sql string)
	overdue string
	begin   func(t *rapid.T) application
	several bool // transactions may be open at once
	dead    func(t *rapid.T) []int64
}

// application is a transaction of the application's.
type application struct {
	insert func(topic string, key *string) (int64, error)
	commit func() error
	end    func()

	began int64 // on the play's clock
	ids   []int64
}

func testOrderProtocol(t *testing.T, p orderedPlace) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) {
		for _, table := range []string{"outbox_events", "outbox_batches", "outbox_dead_letters"} {
			p.exec(t, "DELETE FROM "+table)
		}
		w := &orderModel{orderedPlace: p, events: map[int64]*orderedEvent{}, accepted: map[int64]int{}}
		w.processes = processes{buffers: p.buffers, running: [2]int{0, 1}}
		w.to = &faultySink{w: w, t: t, splits: rapid.Bool().Draw(t, "an address a batch"), whole: rapid.Bool().Draw(t, "refuses batches as a whole")}
		actions := map[string]func(*rapid.T){
			"insert":      w.insert,
			"insert more": w.insert,
			"claim":       w.claim,
			"claim too":   w.claim,
			"take over":   w.takeOver,
			"work":        w.work,
			"work too":    w.work,
			"mark":        w.mark,
			"die":         w.die,
			"forget":      func(t *rapid.T) { w.drop(w.holder(t, anyHolder)) },
			"lapse":       func(t *rapid.T) { p.exec(t, p.overdue); w.takeOver(t) },
		}
		if p.several {
			actions["begin"], actions["commit"] = w.open, w.commit
			defer func() {
				for _, tx := range w.transactions {
					tx.end()
				}
			}()
		}
		t.Repeat(actions)
		w.drain(t)
		w.compare(t)
	})
}

// orderedEvent is an event as the play knows it. Its transaction drew its id after
// began, and was over at committed.
type orderedEvent struct {
	key              string
	began, committed int64
	poison           bool
	refusals         int
	blamed           bool // it died alone five times
}

// orderModel is one sequence of operations.
type orderModel struct {
	orderedPlace
	processes
	to           *faultySink
	clock        int64
	events       map[int64]*orderedEvent
	transactions []*application
	accepted     map[int64]int // by id: when the sink first took it
	replayed     map[int64]bool
}

func (w *orderModel) insert(t *rapid.T) {
	tx := w.begin(t)
	tx.began = w.tick()
	w.put(t, &tx)
	w.end(t, &tx)
}

func (w *orderModel) tick() int64 {
	w.clock++
	return w.clock
}

var someKeys = []string{"a", "b", "c", ""}

// put inserts a few events; "" stands for NULL.
func (w *orderModel) put(t *rapid.T, tx *application) {
	for range rapid.IntRange(1, 4).Draw(t, "events") {
		e := &orderedEvent{key: rapid.SampledFrom(someKeys).Draw(t, "key"), began: tx.began}
		e.poison = rapid.IntRange(0, 7).Draw(t, "poison") == 0
		var key *string
		if e.key != "" {
			key = &e.key
		}
		id, err := tx.insert(rapid.SampledFrom(topics).Draw(t, "topic"), key)
		if err != nil {
			t.Fatal(err)
		}
		tx.ids = append(tx.ids, id)
		w.events[id] = e
	}
}

func (w *orderModel) end(t *rapid.T, tx *application) {
	if err := tx.commit(); err != nil {
		t.Fatal(err)
	}
	now := w.tick()
	for _, id := range tx.ids {
		w.events[id].committed = now
	}
}

func (w *orderModel) open(t *rapid.T) {
	if len(w.transactions) == 2 {
		t.Skip("enough transactions are open")
	}
	tx := w.begin(t)
	tx.began = w.tick()
	w.transactions = append(w.transactions, &tx)
	w.put(t, &tx)
}

func (w *orderModel) commit(t *rapid.T) {
	if len(w.transactions) == 0 {
		t.Skip("no transaction is open")
	}
	w.end(t, w.transactions[0])
	w.transactions = w.transactions[1:]
}

func (w *orderModel) hold(t *rapid.T, h *leaseHolder) {
	if h == nil {
		return
	}
	if ids := h.batch.IDs(); !slices.IsSorted(ids) {
		t.Fatalf("a batch has its events in the order %v", ids)
	}
	w.holders = append(w.holders, h)
}

func (w *orderModel) claim(t *rapid.T) { w.hold(t, w.processes.claim(t, 1, 6)) }

func (w *orderModel) takeOver(t *rapid.T) { w.hold(t, w.processes.takeOver(t)) }

const mostRefusals = 3

func (w *orderModel) workBy(t *rapid.T, h *leaseHolder) {
	if w.blamed(h.batch) && len(h.batch.Events) == 1 {
		w.events[h.batch.Events[0].ID].blamed = true
	}
	worker := delivery.NewWorker(w.to, h.buf, delivery.Config{
		MaxAttempts: mostRefusals, Ordered: true, Observer: noObserver{}, Log: slog.New(slog.DiscardHandler),
		Backoff: delivery.Backoff{Initial: time.Millisecond, Max: time.Millisecond, Multiplier: 1},
	})
	if _, err := worker.Work(t.Context(), t.Context(), h.batch, nil, nil); err != nil && !errors.Is(err, buffer.ErrLeaseLost) {
		t.Fatal(err)
	}
}

// work lets an owner work that may have lost its lease.
func (w *orderModel) work(t *rapid.T) {
	h := w.holder(t, anyHolder)
	if h == nil {
		return
	}
	w.workBy(t, h)
	w.drop(h)
}

// mark: it was sent, and cannot be settled.
func (w *orderModel) mark(t *rapid.T) {
	h := w.holder(t, func(h *leaseHolder) bool {
		return !h.batch.DeliveryRecorded() && len(h.batch.Events) > 0 && !w.blamed(h.batch)
	})
	if h == nil {
		return
	}
	var delivered []int64
	err := w.to.Send(t.Context(), &h.batch.Batch)
	some, partly := errors.AsType[*sink.BatchError](err)
	for i, id := range h.batch.IDs() {
		if err == nil || partly && !slices.ContainsFunc(some.Events, func(e sink.EventError) bool { return e.Index == i }) {
			delivered = append(delivered, id)
		}
	}
	if len(delivered) > 0 {
		if err := h.buf.MarkDelivered(t.Context(), h.batch, delivered); err != nil && !errors.Is(err, buffer.ErrLeaseLost) {
			t.Fatal(err)
		}
	}
	w.drop(h)
}

// drain lets one process work until nothing is left, at a sink without faults.
func (w *orderModel) drain(t *rapid.T) {
	for len(w.transactions) > 0 {
		w.commit(t)
	}
	w.to.calm = true
	w.endProcess(t, 0)
	late := w.holders // those that were stopped all the while
	for range 1000 {
		w.exec(t, w.overdue)
		h := w.next(t)
		if h == nil {
			for _, h := range late {
				w.workBy(t, h)
			}
			return
		}
		w.workBy(t, h)
	}
	t.Fatal("the relay did not finish")
}

// compare checks that no event is lost and that each key is in order.
func (w *orderModel) compare(t *rapid.T) {
	dead := w.dead(t)
	ids := slices.Sorted(maps.Keys(w.events))
	for i, id := range ids {
		e := w.events[id]
		at, accepted := w.accepted[id]
		buried := slices.Contains(dead, id)
		switch {
		case !accepted && !buried:
			t.Fatalf("event %d is lost", id)
		case buried && !e.poison && !e.blamed && e.refusals < mostRefusals:
			t.Fatalf("event %d was buried after %d refusals of its own", id, e.refusals)
		case !accepted || e.key == "":
			continue
		}
		for _, earlier := range ids[:i] {
			before := w.events[earlier]
			when, accepted := w.accepted[earlier]
			// An owner that was stopped may still send what became a dead letter meanwhile.
			late := before.blamed && slices.Contains(dead, earlier) || w.replayed[earlier]
			if before.key == e.key && before.committed < e.began && accepted && when > at && !late {
				t.Fatalf("event %d of key %s came after event %d", earlier, e.key, id)
			}
		}
	}
}

// faultySink accepts the events of each key in order, as JetStream does, and injects faults.
type faultySink struct {
	w             *orderModel
	t             *rapid.T
	splits, whole bool
	calm          bool
}

func (s *faultySink) Check(context.Context) error { return nil }
func (s *faultySink) Close() error                { return nil }

func (s *faultySink) fault(what string, one int) bool {
	return !s.calm && rapid.IntRange(1, one).Draw(s.t, what) == 1
}

var errFault = errors.New("injected fault")

func (s *faultySink) Send(_ context.Context, b *buffer.Batch) error {
	if s.splits {
		byTopic, _ := sink.GroupByAddress(b, mustTemplate.Address)
		if len(byTopic) > 1 {
			return &sink.SplitError{Groups: byTopic}
		}
	}
	poisoned := slices.ContainsFunc(b.Events, func(e outbox.Event) bool { return s.w.events[e.ID].poison })
	switch {
	case s.fault("outage", 6):
		return sink.Unavailable(errFault)
	case s.whole && poisoned:
		return sink.Permanent(errFault)
	case s.fault("cut off", 6):
		for i := range b.Events[:rapid.IntRange(0, len(b.Events)).Draw(s.t, "taken")] {
			if s.w.events[b.Events[i].ID].poison {
				break
			}
			s.take(b.Events[i].ID)
		}
		return sink.Unavailable(errFault)
	}
	var failed sink.BatchError
	stuck := map[string]int64{}
	for i := range b.Events {
		id := b.Events[i].ID
		e := s.w.events[id]
		var err error
		if before, is := stuck[e.key]; is {
			err = &sink.KeyBlockedError{ID: before, Err: errFault}
		} else {
			switch {
			case e.poison:
				err = sink.Permanent(errFault)
			case s.fault("event unavailable", 6):
				err = sink.Unavailable(errFault)
			case s.fault("event refused", 4):
				e.refusals++
				err = errFault
			}
			if err != nil && !e.poison && e.key != "" {
				stuck[e.key] = id
			}
		}
		if err != nil {
			failed.Events = append(failed.Events, sink.EventError{Index: i, Err: err})
			continue
		}
		s.take(id)
	}
	if failed.Events != nil {
		return &failed
	}
	return nil
}

func (s *faultySink) take(id int64) {
	if _, known := s.w.accepted[id]; !known {
		s.w.accepted[id] = len(s.w.accepted)
	}
}

var mustTemplate = func() sink.Template {
	t, err := sink.ParseTemplate("{topic}", false)
	if err != nil {
		panic(fmt.Sprint("a template: ", err))
	}
	return t
}()
