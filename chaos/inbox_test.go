//go:build unix

package chaos

import (
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/sink/pgsink"
)

// inbox: two relays insert into a table of another database, whose server is killed in turns with them. What was committed without an answer is sent again,
// and the key keeps it from being there twice.
func (x *trial) inbox() {
	server := testserver.OwnPostgres(x, testserver.PostgresOptions{Durable: true})
	from, to := x.postgres(testserver.Postgres(x)), x.postgres(server.URL)
	_, err := to.db.ExecContext(x.Context(), pgsink.Schema("inbox"))
	testkit.NoError(x, err)
	count := func() (n int64) {
		if to.db.QueryRowContext(x.Context(), "SELECT count(*) FROM inbox").Scan(&n) != nil {
			return 0 // it begins again
		}
		return n
	}
	yaml := pipeline(from, `{url: "`+server.URL+`?table=inbox"}`)
	relays := []*relay{x.start("one", yaml), x.start("two", yaml)}
	for i := range x.rounds(4) {
		from.during(600, count, func() {
			if i%2 == 0 {
				testkit.NoError(x, server.Kill())
				testkit.NoError(x, server.Start(x.Context()))
			}
			x.again(relays[i/2%2])
		}, "orders", "refunds")
	}
	from.drained()
	x.end(relays...)
	rows, err := to.db.QueryContext(x.Context(), "SELECT event_id::bigint FROM inbox")
	testkit.NoError(x, err)
	defer rows.Close()
	arrived := map[int64]int{}
	for rows.Next() {
		var id int64
		testkit.NoError(x, rows.Scan(&id))
		arrived[id]++
	}
	testkit.NoError(x, rows.Err())
	from.account(arrived, false)
}
