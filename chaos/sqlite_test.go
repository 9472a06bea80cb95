//go:build unix

package chaos

import "github.com/outboxrelay/relay/internal/testserver"

// sqliteTwoProcesses: two relays share a SQLite file. One of them is killed again and again
// while the other waits for its locks.
func (x *trial) sqliteTwoProcesses() {
	server := testserver.Redis(x)
	from, to := x.sqlite("shop"), x.redis([]string{server.Addr}, "orders")
	yaml := pipeline(from, `{url: "`+server.URL+`", stream: orders}`)
	relays := []*relay{x.start("one", yaml), x.start("two", yaml)}
	for i := range x.rounds(4) {
		from.during(300, to.count, func() { x.again(relays[i%2]) }, "orders")
	}
	from.drained()
	x.end(relays...)
	from.account(to.arrived(), false)
}
