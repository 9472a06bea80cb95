package bench

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// The tables: a business table and two buffers, one of them with the trigger.
const (
	businessSchemaSQL = `
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer bigint NOT NULL, total numeric NOT NULL)`

	plainTable = "outbox_plain"
	wokenTable = "outbox_woken"
)

// flavour is one way in which the application writes.
type flavour struct {
	name     string
	table    string // where its outbox row goes; "" for none
	relay    string // how the relay that drains it is woken; "" when none runs
	notifies bool   // every commit notifies, as with a relay that is idle forever
}

// BenchmarkCost has eight clients commit business transactions, without an outbox
// row and with one, and reports what the row and the wake-up trigger cost. A
// transaction is one round trip. A running relay drains what is committed, so it is
// active throughout and uses its share of the machine: compare those two flavours
// with each other. An idle relay becomes active at the first commit. So the cost of a
// trigger that always notifies shows only if a session holds the relay's lock forever.
func BenchmarkCost(b *testing.B) {
	db := newDatabase(b)
	relay := build(b, db)
	server := testserver.Redis(b, "--appendonly", "no")
	db.exec(b, businessSchemaSQL)
	relay.migrate(b, settings{table: plainTable, wake: "poll"})
	relay.migrate(b, settings{table: wokenTable, wake: "notify"})
	flavours := []flavour{
		{name: "no outbox row"},
		{name: "row", table: plainTable},
		{name: "row, trigger", table: wokenTable},
		{name: "row, trigger, always notifies", table: wokenTable, notifies: true},
		{name: "row, relay busy", table: plainTable, relay: "poll"},
		{name: "row, trigger, relay busy", table: wokenTable, relay: "notify"},
	}
	lasting := scaledTime(10 * time.Second)
	results := map[string][]float64{}
	for round := 0; b.Loop(); round++ {
		for i := range flavours {
			f := flavours[(i+round)%len(flavours)]
			db.exec(b, "TRUNCATE orders, outbox_batches, "+plainTable+", "+wokenTable)
			db.exec(b, "CHECKPOINT")
			stop := func() {}
			if f.relay != "" {
				_, stop = relay.run(b, settings{table: f.table, wake: f.relay, sink: server.URL, maxlen: 10_000})
				db.insert(b, f.table, 1)
				until(b, time.Minute, func() bool { return queryValue[int](b, db, "SELECT count(*) FROM "+f.table) == 0 })
			}
			if f.notifies {
				stop = db.idleRelay(b, f.table)
			}
			tps, rows := db.transactions(b, f.table, lasting)
			if f.relay != "" { // nothing is lost by being quick
				until(b, 2*time.Minute, func() bool { return queryValue[bool](b, db, "SELECT NOT EXISTS (SELECT FROM "+f.table+")") })
			} else if f.table != "" && queryValue[int64](b, db, "SELECT count(*) FROM "+f.table) != rows {
				b.Fatalf("%s: rows are missing", f.name)
			}
			stop()
			results[f.name] = append(results[f.name], tps)
		}
	}
	t := table{head: []string{"", "transactions/s", "to " + flavours[1].name}}
	to := func(mine, other string) float64 {
		var each []float64
		for i, tps := range results[mine] {
			each = append(each, tps/results[other][i])
		}
		return median(each)
	}
	for _, f := range flavours {
		t.add(f.name, median(results[f.name]), to(f.name, flavours[1].name))
	}
	b.Logf("8 clients for %v, medians of %d rounds\n%s", lasting, b.N, t)
	b.ReportMetric(to("row", "no outbox row"), "row/none")
	b.ReportMetric(to("row, trigger", "row"), "trigger/row")
	b.ReportMetric(to("row, trigger, always notifies", "row"), "notifies/row")
	b.ReportMetric(to("row, trigger, relay busy", "row, relay busy"), "trigger/row-busy")
	b.ReportMetric(0, "ns/op")
}

// idleRelay holds the lock of an idle relay forever. stop fails if no notification
// arrived.
func (db *database) idleRelay(b *testing.B, table string) (stop func()) {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), db.url)
	testkit.NoError(b, err)
	oid := queryValue[uint32](b, db, "SELECT $1::regclass::oid", table)
	// As in schema/notify/notify.sql of the buffer.
	_, err = conn.Exec(b.Context(), "SELECT pg_advisory_lock(1919711607, $1::text::bigint::int4)", fmt.Sprint(oid))
	testkit.NoError(b, err)
	_, err = conn.Exec(b.Context(), fmt.Sprintf("LISTEN relay_%d", oid))
	testkit.NoError(b, err)
	return func() {
		ctx, cancel := bounded(b, 10*time.Second)
		defer cancel()
		_, err := conn.WaitForNotification(ctx)
		testkit.NoError(b, errors.Join(err, conn.Close(b.Context())))
	}
}

const businessSQL = `
INSERT INTO orders (customer, total) VALUES ($1, 17.5)`

// transactions lets eight clients write for a time, and returns how many
// transactions a second they committed, and how many in all.
func (db *database) transactions(b *testing.B, table string, lasting time.Duration) (tps float64, all int64) {
	b.Helper()
	ctx, cancel := bounded(b, lasting+time.Minute)
	defer cancel()
	outboxSQL := fmt.Sprintf("INSERT INTO %s (topic, payload) SELECT 'orders', %s FROM (VALUES ($1::bigint)) v (i)", table, payloadSQL)
	conns := make([]*pgx.Conn, 8)
	for i := range conns {
		var err error
		conns[i], err = pgx.Connect(ctx, db.url)
		testkit.NoError(b, err)
	}
	var (
		group errgroup.Group
		done  atomic.Int64
		began = time.Now()
	)
	for client, conn := range conns {
		group.Go(func() error {
			for i := int64(client); time.Since(began) < lasting; i += int64(len(conns)) {
				var batch pgx.Batch
				batch.Queue("BEGIN")
				batch.Queue(businessSQL, i)
				if table != "" {
					batch.Queue(outboxSQL, i)
				}
				batch.Queue("COMMIT")
				if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
					return err
				}
				done.Add(1)
			}
			return nil
		})
	}
	testkit.NoError(b, group.Wait())
	tps = float64(done.Load()) / time.Since(began).Seconds()
	for _, conn := range conns {
		testkit.NoError(b, conn.Close(b.Context()))
	}
	return tps, done.Load()
}
