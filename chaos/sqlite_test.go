//go:build unix

package chaos

import (
	"strings"

	"github.com/outboxrelay/relay/internal/testserver"
)

// sqliteTwoProcesses: two relays with two sinks, one of which keeps order by key, share a SQLite file. One of them is killed again and
// again while the other waits for its locks.
func (x *trial) sqliteTwoProcesses() {
	server := testserver.Redis(x)
	from, to, inOrder := x.sqlite("shop"), x.redis([]string{server.Addr}, "orders"), x.redis([]string{server.Addr}, "ordered")
	one := pipeline(from, "{}")
	yaml := one[:strings.Index(one, "    sink:")] + `    sinks:
      - {name: stream, url: "` + server.URL + `", stream: orders}
      - {name: ordered, order: key, url: "` + server.URL + `", stream: ordered, batch_size: 7}
`
	relays := []*relay{x.start("one", yaml), x.start("two", yaml)}
	for i := range x.rounds(4) {
		from.during(300, to.count, func() { x.again(relays[i%2]) }, "orders")
	}
	from.drained()
	x.end(relays...)
	from.account(to.arrived(), false)
	from.account(inOrder.arrived(), false)
}
