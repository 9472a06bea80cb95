package pipeline_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// orderedRoutes are the sinks of TestOrderProtocol_Sinks, with small batches. The last one keeps no order.
var orderedRoutes = []buffer.Route{
	{Sink: "all", BatchSize: 4, Ordered: true},
	{Sink: "some", BatchSize: 2, Match: []string{topics[0]}, Ordered: true},
	{Sink: "none", BatchSize: 5},
}

// TestOrderProtocol_Sinks is TestOrderProtocol for several sinks of a table. Claims are routed or cut off, batches that nobody has sent
// are cut, and dead letters are replayed. At each sink that keeps order, the events of a key come in the order of their ids, and
// no event is lost at any.
func TestOrderProtocol_Sinks(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) orderedSinksPlace{"postgres": orderedSinksOnPostgres, "sqlite": orderedSinksOnSQLite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testOrderProtocolOfSinks(t, open(t))
		})
	}
}

// orderedSinksPlace is a buffer whose sinks keep order, seen by two processes, and how to get at its database.
type orderedSinksPlace struct {
	buffers []routedBuffer
	overdue string
	exec    func(t *rapid.T, sql string)
	ids     func(t *rapid.T, sql string) []int64
	begin   func(t *rapid.T) application
	several bool // transactions may be open at once
}

func orderedSinksOnPostgres(t *testing.T) orderedSinksPlace {
	t.Helper()
	d := newDatabase(t)
	p := orderedSinksPlace{overdue: "UPDATE outbox_batches SET due_at = clock_timestamp() - interval '1s'", several: true}
	for _, owner := range []string{"a", "b"} {
		b, err := postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders", Owner: owner, Connections: 12, Sinks: orderedRoutes})
		testkit.NoError(t, err)
		t.Cleanup(func() { testkit.NoError(t, b.Close()) })
		p.buffers = append(p.buffers, b)
	}
	p.exec = func(t *rapid.T, sql string) {
		_, err := d.app.Exec(t.Context(), sql)
		testkit.NoError(t, err)
	}
	p.ids = func(t *rapid.T, sql string) []int64 {
		rows, err := d.app.Query(t.Context(), sql)
		testkit.NoError(t, err)
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		testkit.NoError(t, err)
		return ids
	}
	p.begin = func(t *rapid.T) application {
		tx, err := d.app.Begin(t.Context())
		testkit.NoError(t, err)
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
	}
	return p
}

// orderedSinksOnSQLite is the same in a SQLite file, which one transaction at a time can write to.
func orderedSinksOnSQLite(t *testing.T) orderedSinksPlace {
	t.Helper()
	f := newFile(t)
	p := orderedSinksPlace{overdue: "UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 seconds')"}
	for _, owner := range []string{"a", "b"} {
		b, err := sqlite.Open(sqlite.Config{URL: f.url, Pipeline: "orders", Owner: owner, Sinks: orderedRoutes})
		testkit.NoError(t, err)
		t.Cleanup(func() { testkit.NoError(t, b.Close()) })
		p.buffers = append(p.buffers, b)
	}
	p.exec = func(t *rapid.T, sql string) {
		_, err := f.app.ExecContext(t.Context(), sql)
		testkit.NoError(t, err)
	}
	p.ids = func(t *rapid.T, sql string) (ids []int64) {
		rows, err := f.app.QueryContext(t.Context(), sql)
		testkit.NoError(t, err)
		defer rows.Close()
		for rows.Next() {
			var id int64
			testkit.NoError(t, rows.Scan(&id))
			ids = append(ids, id)
		}
		testkit.NoError(t, rows.Err())
		return ids
	}
	p.begin = func(t *rapid.T) application {
		return application{
			insert: func(topic string, key *string) (int64, error) {
				r, err := f.app.ExecContext(t.Context(), "INSERT INTO outbox_events (topic, key, payload) VALUES (?, ?, '{}')", topic, key)
				if err != nil {
					return 0, err
				}
				return r.LastInsertId()
			},
			commit: func() error { return nil },
			end:    func() {},
		}
	}
	return p
}

func testOrderProtocolOfSinks(t *testing.T, p orderedSinksPlace) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) {
		w := &orderedSinks{orderedSinksPlace: p}
		for _, table := range []string{"outbox_events", "outbox_batches", "outbox_dead_letters"} {
			w.exec(t, "DELETE FROM "+table)
		}
		for _, r := range orderedRoutes {
			w.sinks = append(w.sinks, w.sink(t, r))
		}
		any := func(f func(*orderModel, *rapid.T)) func(*rapid.T) {
			return func(t *rapid.T) { f(rapid.SampledFrom(w.sinks).Draw(t, "sink").orderModel, t) }
		}
		defer func() {
			for _, tx := range w.transactions {
				tx.end()
			}
		}()
		actions := map[string]func(*rapid.T){
			"insert":          func(t *rapid.T) { w.open(t); w.commit(t, len(w.transactions)-1) },
			"insert more":     func(t *rapid.T) { w.open(t); w.commit(t, len(w.transactions)-1) },
			"route":           w.route,
			"route too":       w.route,
			"cut off":         w.cutOff,
			"route due":       w.routeDue,
			"take over":       any((*orderModel).takeOver),
			"take over too":   any((*orderModel).takeOver),
			"take over often": any((*orderModel).takeOver),
			"work":            any((*orderModel).work),
			"work too":        any((*orderModel).work),
			"work often":      any((*orderModel).work),
			"mark":            any((*orderModel).mark),
			"die":             any(func(m *orderModel, t *rapid.T) { m.die(t) }),
			"forget":          any(func(m *orderModel, t *rapid.T) { m.drop(m.holder(t, anyHolder)) }),
			"lapse":           any(func(m *orderModel, t *rapid.T) { w.exec(t, m.overdue); m.takeOver(t) }),
			"replay":          w.replay,
		}
		if p.several {
			actions["begin"], actions["commit"] = w.openToo, func(t *rapid.T) { w.commit(t, 0) }
		}
		t.Repeat(actions)
		w.drain(t)
		for _, s := range w.sinks {
			s.compare(t)
		}
	})
}

// orderedSinks is one sequence of operations.
type orderedSinks struct {
	orderedSinksPlace
	sinks        []*orderedSink
	transactions []*application
	clock        int64
}

// orderedSink is what one sink sees of it. Of a sink that keeps no order, the events have no key here.
type orderedSink struct {
	*orderModel
	route buffer.Route
}

func (w *orderedSinks) sink(t *rapid.T, r buffer.Route) *orderedSink {
	m := &orderModel{
		orderedPlace: orderedPlace{
			exec: w.exec, overdue: w.overdue,
			dead: func(t *rapid.T) []int64 {
				return w.ids(t, "SELECT event_id FROM outbox_dead_letters WHERE sink = '"+r.Sink+"'")
			},
		},
		events: map[int64]*orderedEvent{}, accepted: map[int64]int{}, replayed: map[int64]bool{},
	}
	m.processes = processes{running: [2]int{0, 1}}
	for _, b := range w.buffers {
		m.processes.buffers = append(m.processes.buffers, b.Sink(r.Sink))
	}
	m.to = &faultySink{w: m, t: t, splits: rapid.Bool().Draw(t, "an address a batch"), whole: rapid.Bool().Draw(t, "refuses batches as a whole")}
	return &orderedSink{m, r}
}

func (w *orderedSinks) tick() int64 {
	w.clock++
	return w.clock
}

func (w *orderedSinks) openToo(t *rapid.T) {
	if len(w.transactions) == 2 {
		t.Skip("enough transactions are open")
	}
	w.open(t)
}

// open begins a transaction that inserts a few events; the key "" stands for NULL.
func (w *orderedSinks) open(t *rapid.T) {
	tx := w.begin(t)
	a := &tx
	a.began = w.tick()
	w.transactions = append(w.transactions, a)
	for range rapid.IntRange(1, 4).Draw(t, "events") {
		topic, key := rapid.SampledFrom(topics).Draw(t, "topic"), rapid.SampledFrom(someKeys).Draw(t, "key")
		poison := rapid.IntRange(0, 7).Draw(t, "poison") == 0
		var named *string
		if key != "" {
			named = &key
		}
		id, err := a.insert(topic, named)
		testkit.NoError(t, err)
		a.ids = append(a.ids, id)
		for _, s := range w.sinks {
			if len(s.route.Match) > 0 && !slices.Contains(s.route.Match, topic) {
				continue
			}
			s.events[id] = &orderedEvent{began: a.began, poison: poison}
			if s.route.Ordered {
				s.events[id].key = key
			}
		}
	}
}

func (w *orderedSinks) commit(t *rapid.T, at int) {
	if at >= len(w.transactions) {
		t.Skip("no transaction is open")
	}
	a := w.transactions[at]
	w.transactions = slices.Delete(w.transactions, at, at+1)
	if err := a.commit(); err != nil {
		t.Fatal(err)
	}
	now := w.tick()
	for _, s := range w.sinks {
		for _, id := range a.ids {
			if e := s.events[id]; e != nil {
				e.committed = now
			}
		}
	}
}

func (w *orderedSinks) process(t *rapid.T) int { return rapid.IntRange(0, 1).Draw(t, "process") }

func (w *orderedSinks) route(t *rapid.T) {
	at := w.process(t)
	routed, err := w.buffers[at].Route(t.Context(), rapid.IntRange(1, 6).Draw(t, "limit"), time.Hour, func(string) bool { return rapid.Bool().Draw(t, "take") })
	if err != nil {
		t.Fatal(err)
	}
	if routed == nil {
		return
	}
	for _, l := range routed.Leases {
		for _, s := range w.sinks {
			if s.route.Sink == l.Sink {
				s.hold(t, s.took(t, at, false, l.Lease, nil))
			}
		}
	}
}

// cutOff: a process ends between its claim and its route.
func (w *orderedSinks) cutOff(t *rapid.T) {
	if _, err := w.buffers[w.process(t)].Claim(t.Context(), rapid.IntRange(1, 6).Draw(t, "limit"), time.Hour); err != nil {
		t.Fatal(err)
	}
}

func (w *orderedSinks) routeDue(t *rapid.T) {
	if _, err := w.buffers[w.process(t)].RouteDue(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
}

// replay: a dead letter that is replayed was passed by the later events of its key.
func (w *orderedSinks) replay(t *rapid.T) {
	if _, err := w.buffers[w.process(t)].Replay(t.Context(), buffer.DeadFilter{}, rapid.IntRange(1, 5).Draw(t, "limit")); err != nil {
		t.Fatal(err)
	}
	for _, s := range w.sinks {
		for _, id := range w.ids(t, "SELECT event_id FROM outbox_dead_letters WHERE closed_at IS NOT NULL AND sink = '"+s.route.Sink+"'") {
			s.replayed[id] = true
		}
	}
}

// drain lets one process work until nothing is left, at sinks without faults.
func (w *orderedSinks) drain(t *rapid.T) {
	for len(w.transactions) > 0 {
		w.commit(t, 0)
	}
	var late [][]*leaseHolder // those that were stopped all the while
	for _, s := range w.sinks {
		s.to.calm = true
		s.endProcess(t, 0)
		late = append(late, s.holders)
	}
	for range 1000 {
		w.exec(t, w.overdue)
		routed, err := w.buffers[0].Route(t.Context(), 1000, time.Hour, func(string) bool { return false })
		if err == nil && routed == nil {
			routed, err = w.buffers[0].RouteDue(t.Context(), time.Hour)
		}
		if err != nil {
			t.Fatal(err)
		}
		busy := routed != nil
		for _, s := range w.sinks {
			if h := s.next(t); h != nil {
				busy = true
				s.workBy(t, h)
			}
		}
		if busy {
			continue
		}
		if left := w.ids(t, "SELECT id FROM outbox_events UNION ALL SELECT -first_id FROM outbox_batches"); len(left) > 0 {
			t.Fatalf("events and batches are left: %v", left)
		}
		for i, s := range w.sinks {
			for _, h := range late[i] {
				s.workBy(t, h)
			}
		}
		return
	}
	t.Fatal("the relay did not finish")
}
