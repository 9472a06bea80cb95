//go:build unix

package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// earlier is the revision of 2026-11-27 whose tables the upgrade tests of outbox/postgres and outbox/sqlite have, too. After the first release it is
// that of the version before.
const earlier = "8d2c99d930b603d46a33cfdf8693285e09800add"

var oldRevision = flag.String("chaos.old", earlier, "git revision of the older relay in TestFault/Upgrade")

// twoVersions: relays that differ in how they claim must agree on one mode.
func (x *trial) twoVersions() {
	server := testserver.Redis(x)
	from, to := x.postgres(testserver.Postgres(x)), x.redis([]string{server.Addr}, "orders")
	sink := `{url: "` + server.URL + `", stream: orders}`
	older := x.start("older", pipeline(from, sink, "    claim: stamp"))
	var newer *relay
	from.during(300, to.count, func() { newer = x.start("newer", pipeline(from, sink, "    claim: range")) }, "orders")
	for i := range x.rounds(4) {
		from.during(300, to.count, func() { x.again([]*relay{newer, older}[i%2]) }, "orders")
	}
	from.drained()
	x.end(older, newer)
	from.account(to.arrived(), false)
}

func (x *trial) upgradePostgres() {
	x.upgrade(func() *source { return x.postgres(testserver.Postgres(x)) })
}
func (x *trial) upgradeSQLite() { x.upgrade(func() *source { return x.sqlite("shop") }) }

// upgrade: the relay of an earlier version, on the tables that it made, is upgraded and then comes back, while the application inserts. Both
// versions are killed while they share the tables, one of two sinks keeps order by key, and every event arrives at each exactly once.
func (x *trial) upgrade(open func() *source) {
	old := *x
	program, err := x.earlier()
	if errors.Is(err, errNoRevision) {
		x.Skipf("NOT TESTED: the upgrade from revision %s: %v", *oldRevision, err)
	}
	testkit.NoError(x, err)
	old.program = program
	server := testserver.Redis(x)
	from, to, inOrder := open(), x.redis([]string{server.Addr}, "orders"), x.redis([]string{server.Addr}, "ordered")
	one := pipeline(from, "{}")
	yaml := one[:strings.Index(one, "    sink:")] + `    sinks:
      - {name: stream, url: "` + server.URL + `", stream: orders}
      - {name: ordered, order: key, url: "` + server.URL + `", stream: ordered, batch_size: 7}
`
	const load = 300 // events in each step
	during := func(fault func()) {
		x.Helper()
		from.during(load, to.count, fault, "orders", "refunds")
	}
	older := old.start("older", yaml)
	during(func() { x.again(older) })
	var newer *relay
	during(func() { newer = x.start("newer", yaml) }) // it migrates while the older one runs
	for i := range x.rounds(4) {
		during(func() { x.again([]*relay{older, newer}[i%2]) })
	}
	during(func() {
		testkit.NoError(x, older.kill())
		testkit.NoError(x, newer.kill())
		testkit.NoError(x, older.start())
		testkit.NoError(x, newer.start())
	})
	during(func() { testkit.NoError(x, older.kill()) })
	during(func() { // the way back
		testkit.NoError(x, command(x.Context(), older.program, "migrate", "-c", older.config))
		testkit.NoError(x, older.start())
		testkit.NoError(x, newer.kill())
	})
	during(func() { x.again(older) })
	from.drained()
	x.end(older)
	testkit.NoError(x, command(x.Context(), older.program, "verify", "-c", older.config))
	testkit.NoError(x, command(x.Context(), x.program, "verify", "-c", newer.config))
	from.account(to.arrived(), false)
	from.account(inOrder.arrived(), false)
}

// errNoRevision: the clone does not have the revision.
var errNoRevision = errors.New("this clone does not have the revision; git fetch --unshallow gets it")

// buildEarlier builds the relay of a git revision in dir.
func buildEarlier(ctx context.Context, dir, revision string) (program string, err error) {
	if err := command(ctx, "git", "cat-file", "-e", revision+"^{commit}"); err != nil {
		return "", fmt.Errorf("%w: %w", errNoRevision, err)
	}
	tree, archive, program := filepath.Join(dir, "tree"), filepath.Join(dir, "tree.tar"), filepath.Join(dir, "relay-earlier")
	err = os.Mkdir(tree, 0o700)
	for _, do := range [][]string{
		{"git", "-C", "..", "archive", "-o", archive, revision},
		{"tar", "-xf", archive, "-C", tree},
		{"go", "build", "-C", tree, "-o", program, "./cmd/relay"},
	} {
		if err == nil {
			err = command(ctx, do[0], do[1:]...)
		}
	}
	return program, err
}
