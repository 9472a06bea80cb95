//go:build unix

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	producers = 6
	dawdlers  = 2                // of them; they hold their transactions open for seconds
	late      = 2                // seconds that make a commit a late one
	catchUp   = 10 * time.Second // limit for catching up after the server was down
	backlog   = 300_000          // committed events that are not delivered yet, at which producers wait
)

// tally counts what producers did.
type tally struct {
	late, poison, waited atomic.Int64 // events; waited: times that the backlog was too long
	unknown, brokenOff   atomic.Int64 // transactions: COMMIT without an answer; failed before it
}

// producer is an application. It commits and rolls back on its own connection, and
// reconnects after a restart of the server.
type producer struct {
	run  *run
	rng  *rand.Rand
	slow bool
	// every is the interval between transactions.
	every time.Duration
	conn  *pgx.Conn
}

// perTransaction is the average number of events of a transaction.
const perTransaction = 35

func (r *run) newProducer(i int) *producer {
	p := &producer{run: r, rng: rand.New(rand.NewPCG(r.seed, uint64(i)+1)), slow: i < dawdlers, every: 100 * time.Millisecond}
	if !p.slow {
		// Three of ten transactions roll back.
		each := float64(eventsPerSecond()) / 0.7 / (producers - dawdlers) / perTransaction
		p.every = time.Duration(float64(time.Second) / each)
	}
	return p
}

// Run executes transactions until ctx is done.
func (p *producer) Run(ctx context.Context) error {
	defer p.disconnect()
	for next := time.Now(); ; next = next.Add(p.every) {
		if behind := time.Since(next); behind > catchUp {
			next = time.Now()
		}
		if !pause(ctx, time.Until(next)) {
			return nil
		}
		if p.run.backlog() > backlog {
			p.run.producing.waited.Add(1)
			next = next.Add(time.Second)
			continue
		}
		if p.conn == nil {
			conn, err := p.connect(ctx)
			if err != nil {
				next = next.Add(200 * time.Millisecond)
				continue
			}
			p.conn = conn
		}
		if !p.transaction(ctx) {
			p.disconnect()
		}
	}
}

func (p *producer) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return pgx.Connect(ctx, p.run.postgres.URL)
}

func (p *producer) disconnect() {
	if p.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = p.conn.Close(ctx) // it may be broken
	p.conn = nil
}

// draft is a transaction to execute.
type draft struct {
	to     *feed
	topics []string
	sizes  []int32 // of the payloads
	good   []int32 // the bits of the sinks that accept it
	owed   []int32 // the bits of the sinks that match it
	hold   time.Duration
	commit bool
}

func (p *producer) draw() draft {
	d := draft{to: p.run.toRedis.feed, commit: p.rng.Float64() < 0.7}
	topics, bad := []string{"orders", "payments", "refunds"}, p.badForRedis
	switch p.rng.IntN(3) {
	case 0:
		d.to = p.run.toJetStream.feed
		topics, bad = []string{"shop.orders", "shop.payments", "shop.refunds"}, p.badForJetStream
	case 1:
		d.to = p.run.log.feed
		topics, bad = []string{"fan.refunds", "fan.payments", "fan.orders"}, p.badForFan
	}
	several := p.rng.IntN(50) == 0 || len(d.to.sinks) > 1
	for range 1 + p.rng.IntN(2*perTransaction-1) {
		topic := topics[0]
		if several {
			topic = topics[p.rng.IntN(len(topics))]
		}
		d.add(topic, int32(p.rng.IntN(200)), everySink)
	}
	if p.rng.IntN(40) == 0 {
		bad(&d)
	}
	if p.slow {
		d.hold = time.Duration(p.rng.IntN(7000)) * time.Millisecond
	}
	return d
}

// everySink has the bits of all sinks.
const everySink = 7

// add adds an event. good has the bits of the sinks that accept it.
func (d *draft) add(topic string, size, good int32) {
	var owed int32
	for _, a := range d.to.sinks {
		if a.patterns.Match(topic) {
			owed |= a.bit
		}
	}
	d.topics, d.sizes, d.good, d.owed = append(d.topics, topic), append(d.sizes, size), append(d.good, good), append(d.owed, owed)
}

// Poison: an invalid stream name.
func (p *producer) badForRedis(d *draft) { d.add("orders}", 10, 0) }

// Poison: an invalid subject, too large for the server, too large for the stream.
func (p *producer) badForJetStream(d *draft) {
	switch p.rng.IntN(5) {
	case 0:
		d.add("shop.orders", maxPayload+1000, 0)
	case 1:
		d.add("shop.orders", maxEvent+1000, 0)
	default:
		d.add("shop.or ders", 10, 0)
	}
}

// badForBus is a topic that is an invalid subject and a valid stream name.
const badForBus = "fan.orders.or ders"

// Poison of one sink each: an invalid stream name, an invalid subject, a contact that the API refuses.
func (p *producer) badForFan(d *draft) {
	r := p.run
	switch p.rng.IntN(3) {
	case 0:
		d.add("fan.orders.}", 10, everySink&^r.log.bit)
	case 1:
		d.add(badForBus, 10, everySink&^r.bus.bit)
	default:
		d.add("fan.refunds", 10, everySink&^r.crm.bit)
	}
}

// insertSQL inserts events as an application does and records them in the same
// transaction. One of eleven is delayed, for up to 4 s.
const insertSQL = `
WITH written AS (
  INSERT INTO %s (topic, key, payload, headers, available_at)
  SELECT topic, CASE WHEN n %% 3 > 0 THEN 'customer-' || n %% 100 END,
         json_build_object('owed', owed, 'good', good, 'pad', repeat('x', size)),
         CASE WHEN n %% 7 = 0 THEN '{"source": "chaos"}'::json END,
         CASE WHEN n %% 11 = 0 THEN clock_timestamp() + least(size, 200) * interval '20 ms' END
  FROM unnest($2::text[], $3::int[], $4::int[], $5::int[]) WITH ORDINALITY AS e(topic, size, good, owed, n)
  RETURNING id, (payload->>'owed')::int AS owed, (payload->>'good')::int AS good
), noted AS (
  INSERT INTO chaos_committed (pipeline, id, owed, good) SELECT $1, id, owed, good FROM written
)
SELECT array_agg(id) FROM written`

// transaction executes one transaction, even if ctx is done meanwhile. It returns
// false if the connection is broken.
func (p *producer) transaction(ctx context.Context) bool { return p.make(ctx, p.draw()) }

func (p *producer) make(ctx context.Context, d draft) bool {
	tally := &p.run.producing
	working, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var ids []int64
	tx, err := p.conn.Begin(working)
	if err == nil {
		err = tx.QueryRow(working, fmt.Sprintf(insertSQL, d.to.table), d.to.pipeline, d.topics, d.sizes, d.good, d.owed).Scan(&ids)
	}
	if err != nil {
		tally.brokenOff.Add(1)
		return false
	}
	began := time.Now()
	pause(ctx, d.hold)
	if !d.commit {
		d.to.say(ids, rolledBack)
		return tx.Rollback(working) == nil
	}
	if err := tx.Commit(working); err != nil {
		// In any case the server may have committed before it ended.
		d.to.say(ids, unknown)
		tally.unknown.Add(1)
		return false
	}
	d.to.say(ids, committed)
	for _, a := range d.to.sinks {
		for _, owed := range d.owed {
			if owed&a.bit != 0 {
				a.committed.Add(1)
			}
		}
	}
	if time.Since(began) >= late*time.Second {
		tally.late.Add(int64(len(ids)))
	}
	for i, good := range d.good {
		if d.owed[i]&^good != 0 {
			tally.poison.Add(1)
		}
	}
	return true
}

// waiting returns the number of committed events that have not arrived, dead letters
// included.
func (a *account) waiting() int64 { return max(0, a.committed.Load()-a.arrived.Load()) }

func (r *run) backlog() int64 {
	var sum int64
	for _, a := range r.accounts() {
		sum += a.waiting()
	}
	return sum
}
