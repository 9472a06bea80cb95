//go:build unix

package chaos

import (
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// sinksChange: a rollout adds a sink and removes one while batches wait for it, beside an old relay; then the removed one is
// dropped. Relays are killed all the while. The sink that stays gets every event once, the new one every event that was committed
// after it was registered, and the dropped one nothing.
func (x *trial) sinksChange() {
	server := testserver.Redis(x)
	to := func(stream string) streamsOf { return x.redis([]string{server.Addr}, stream) }
	from, stays, added := x.postgres(testserver.Postgres(x)), to("stays"), to("added")
	yaml := func(sinks ...string) string {
		one := pipeline(from, "{}")
		return one[:strings.Index(one, "    sink:")] + "    sinks:\n      - " + strings.Join(sinks, "\n      - ") + "\n"
	}
	at := func(name string) string { return fmt.Sprintf("{name: %s, url: %q, stream: %[1]s}", name, server.URL) }
	old := yaml(at("stays"), `{name: away, url: "redis://127.0.0.1:9", stream: away}`)
	relays := []*relay{x.start("one", old), x.start("two", old)}
	kill := func() {
		for _, p := range relays {
			x.again(p)
		}
	}
	from.during(300, stays.count, kill, "orders")

	// The first relay gets the new configuration, the second one still has the old one.
	testkit.NoError(x, relays[0].kill())
	testkit.NoError(x, os.WriteFile(relays[0].config, []byte(yaml(at("stays"), at("added"))), 0o600))
	from.during(300, stays.count, func() {
		testkit.NoError(x, relays[0].start())
		testkit.Eventually(x, func() error { return x.expectRow(from, "SELECT count(*) FROM outbox_sinks WHERE sink = 'added'") })
	}, "orders")
	before := maps.Clone(from.committed)
	from.during(600, added.count, kill, "orders", "refunds")

	testkit.NoError(x, relays[1].kill())
	testkit.NoError(x, os.WriteFile(relays[1].config, []byte(yaml(at("stays"), at("added"))), 0o600))
	testkit.NoError(x, relays[1].start())
	testkit.NoError(x, x.expectRow(from, "SELECT count(*) FROM outbox_batches WHERE sink = 'away'"))
	from.during(300, added.count, func() {
		testkit.NoError(x, command(x.Context(), x.program, "sinks", "drop", "away", "-y", "-c", relays[0].config))
		kill()
	}, "orders")
	from.drained()
	x.end(relays...)
	from.account(stays.arrived(), false)
	if n := to("away").count(); n > 0 {
		x.Errorf("the dropped sink got %d events", n)
	}
	arrived := added.arrived()
	maps.DeleteFunc(from.committed, func(id int64, _ bool) bool { return before[id] && arrived[id] == 0 })
	from.account(arrived, false)
}

// expectRow returns an error if a count is 0.
func (x *trial) expectRow(from *source, countSQL string) error {
	var n int
	err := from.db.QueryRowContext(x.Context(), countSQL).Scan(&n)
	if err == nil && n == 0 {
		err = fmt.Errorf("%s returns 0", countSQL)
	}
	return err
}
