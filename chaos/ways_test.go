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

var claim = flag.String("chaos.claim", "range", "claim mode of the relays: range or stamp")

// claims are the claim modes of a run, without auto.
var claims = []string{string(buffer.ClaimRange), string(buffer.ClaimStamp)}

// ways are the delivery paths that were used, as seen from outside of the relays. A run
// that should have used one, and did not, fails.
type ways struct {
	notifications    atomic.Int64 // of the trigger, for an idle relay
	fast, oneByOne   atomic.Int64 // events published to the JetStream stream
	claimed, trigger map[string]string
}

// watchIngest counts how events are published. A subscriber sees the reply subject of
// each; that of a fast batch ends in $FI.
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

// watchNotifications counts notifications of the trigger until ctx is done, except while
// it reconnects.
func (r *run) watchNotifications(ctx context.Context) error {
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
			r.ways.notifications.Add(1)
		}
	}
	return err
}

// idleSQL reports whether a relay is idle: it holds the trigger's lock.
const idleSQL = `
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted AND classid = 1919711607 AND objid = 'outbox_events'::regclass::oid`

// notify commits an event when everything is delivered and a relay is idle. After all
// faults the relays must still receive notifications.
func (r *run) notify(ctx context.Context) {
	conn, err := pgx.Connect(ctx, r.postgres.URL)
	r.check(err)
	defer conn.Close(context.WithoutCancel(ctx))
	r.until(ctx, time.Minute, "becoming idle", func() bool {
		var idle int
		r.check(conn.QueryRow(ctx, idleSQL).Scan(&idle))
		return idle > 0
	})
	before := r.ways.notifications.Load()
	p := r.newProducer(producers)
	defer p.disconnect()
	if p.conn, err = p.connect(ctx); err != nil {
		r.violation("%v", err)
		return
	}
	d := draft{to: r.toRedis.feed, commit: true}
	d.add(streams[0], 1, everySink)
	if !p.make(ctx, d) {
		r.violation("the last event could not be committed")
	}
	r.until(ctx, 10*time.Second, "notifying an idle relay", func() bool { return r.ways.notifications.Load() > before })
	r.drain(ctx)
}

const (
	claimedSQL = `
SELECT buffer, claim FROM outbox_buffers ORDER BY buffer`

	triggersSQL = `
SELECT tgrelid::regclass::text, tgname FROM pg_trigger WHERE tgname = 'outbox_notify'`
)

// checkWays compares the requested modes with the used ones.
func (r *run) checkWays(ctx context.Context) {
	conn, err := pgx.Connect(ctx, r.postgres.URL)
	r.check(err)
	defer conn.Close(context.WithoutCancel(ctx))
	r.ways.claimed, r.ways.trigger = pairs(ctx, r, conn, claimedSQL), pairs(ctx, r, conn, triggersSQL)
	if len(r.ways.claimed) != 3 {
		r.violation("the buffers are %v; want three", r.ways.claimed)
	}
	for buf, mode := range r.ways.claimed {
		if mode != *claim {
			r.violation("%s is claimed by %s, %s was asked for", buf, mode, *claim)
		}
	}
	if len(r.ways.trigger) != 2 || r.ways.trigger["outbox_events"] == "" || r.ways.trigger["outbox_events3"] == "" {
		r.violation("the triggers that notify are %v; expected one on outbox_events and one on outbox_events3", r.ways.trigger)
	}
	if r.ways.fast.Load() == 0 {
		r.violation("no event went to JetStream in a fast batch, and %d one by one", r.ways.oneByOne.Load())
	}
}

// pairs returns the rows of a result by their first column.
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

// checkFlags rejects invalid flags.
func checkFlags() error {
	if !slices.Contains(claims, *claim) {
		return fmt.Errorf("-chaos.claim is %q; expected one of %s", *claim, strings.Join(claims, ", "))
	}
	return nil
}
