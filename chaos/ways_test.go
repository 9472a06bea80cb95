//go:build unix

package chaos

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var claim = flag.String("chaos.claim", "range", "how the relays claim: range, stamp or optimistic")

// claims are those that a run can be asked for; what auto means is not for a run to
// find out.
var claims = []string{string(buffer.ClaimRange), string(buffer.ClaimStamp), string(buffer.ClaimOptimistic)}

// ways are those that events went, as seen from outside of the relays: a run that was
// to try one, and did not, says nothing about it.
type ways struct {
	rings            atomic.Int64 // notifications of the trigger: a relay had been asleep
	fast, oneByOne   atomic.Int64 // events published to the JetStream stream
	claimed, trigger map[string]string
}

// watchIngest counts how events are published. A subscriber sees each with the
// subject that its answer goes to, and that of a fast batch ends in $FI.
func (r *run) watchIngest(conn *nats.Conn) {
	sub, err := conn.Subscribe("shop.>", func(e *nats.Msg) {
		switch {
		case e.Header.Get(nats.MsgIdHdr) == "": // it opens or ends a fast batch
		case strings.HasSuffix(e.Reply, ".$FI"):
			r.ways.fast.Add(1)
		default:
			r.ways.oneByOne.Add(1)
		}
	})
	r.check(err)
	r.check(sub.SetPendingLimits(-1, -1))
}

// watchRings counts what the trigger sends, until ctx is done. While it connects again
// it hears nothing.
func (r *run) watchRings(ctx context.Context) error {
	for ctx.Err() == nil {
		conn, err := pgx.Connect(ctx, r.postgres.URL)
		if err == nil {
			err = r.countRings(ctx, conn)
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			_ = conn.Close(closing) // it may be broken
			cancel()
		}
		if err != nil {
			pause(ctx, 200*time.Millisecond)
		}
	}
	return nil
}

func (r *run) countRings(ctx context.Context, conn *pgx.Conn) error {
	var channel string
	err := conn.QueryRow(ctx, `SELECT 'relay_' || 'outbox_events'::regclass::oid`).Scan(&channel)
	if err == nil {
		_, err = conn.Exec(ctx, "LISTEN "+channel)
	}
	for err == nil {
		if _, err = conn.WaitForNotification(ctx); err == nil {
			r.ways.rings.Add(1)
		}
	}
	return err
}

// asleepSQL tells whether a relay sleeps until it is rung for: the trigger's lock is held.
const asleepSQL = `
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted AND classid = 1919711607 AND objid = 'outbox_events'::regclass::oid`

// ring commits an event when all is quiet and a relay sleeps: after all that was done
// to them, they still hear.
func (r *run) ring(ctx context.Context) {
	conn, err := pgx.Connect(ctx, r.postgres.URL)
	r.check(err)
	defer conn.Close(context.WithoutCancel(ctx))
	r.until(ctx, time.Minute, "falling asleep", func() bool {
		var asleep int
		r.check(conn.QueryRow(ctx, asleepSQL).Scan(&asleep))
		return asleep > 0
	})
	before := r.ways.rings.Load()
	p := r.newProducer(producers)
	defer p.disconnect()
	if p.conn, err = p.connect(ctx); err != nil {
		r.violation("%v", err)
		return
	}
	d := draft{to: r.toRedis, commit: true}
	d.add(streams[0], 1, true)
	if !p.make(ctx, d) {
		r.violation("the last event could not be committed")
	}
	r.until(ctx, 10*time.Second, "ringing for a relay that sleeps", func() bool { return r.ways.rings.Load() > before })
	r.drain(ctx)
}

const (
	claimedSQL = `
SELECT buffer, claim FROM outbox_buffers ORDER BY buffer`

	triggersSQL = `
SELECT tgrelid::regclass::text, tgname FROM pg_trigger WHERE tgname = 'outbox_notify'`
)

// checkWays compares what was asked for with what was done.
func (r *run) checkWays(ctx context.Context) {
	conn, err := pgx.Connect(ctx, r.postgres.URL)
	r.check(err)
	defer conn.Close(context.WithoutCancel(ctx))
	r.ways.claimed, r.ways.trigger = pairs(ctx, r, conn, claimedSQL), pairs(ctx, r, conn, triggersSQL)
	if len(r.ways.claimed) != 2 {
		r.violation("the buffers are %v, two were expected", r.ways.claimed)
	}
	for buf, mode := range r.ways.claimed {
		if mode != *claim {
			r.violation("%s is claimed by %s, %s was asked for", buf, mode, *claim)
		}
	}
	if len(r.ways.trigger) != 1 || r.ways.trigger["outbox_events"] == "" {
		r.violation("the triggers that ring are %v, one was expected, on outbox_events", r.ways.trigger)
	}
	if r.ways.fast.Load() == 0 {
		r.violation("no event went to JetStream in a fast batch, and %d one by one", r.ways.oneByOne.Load())
	}
}

// pairs are the rows of an answer, by their first column.
func pairs(ctx context.Context, r *run, conn *pgx.Conn, sql string) map[string]string {
	rows, err := conn.Query(ctx, sql)
	r.check(err)
	found := map[string]string{}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		found[name] = value
		return nil
	})
	r.check(err)
	return found
}

// checkFlags says what cannot be asked for.
func checkFlags() error {
	if !slices.Contains(claims, *claim) {
		return fmt.Errorf("-chaos.claim is %q, one of %s was expected", *claim, strings.Join(claims, ", "))
	}
	return nil
}
