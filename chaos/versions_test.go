//go:build unix

package chaos

import (
	"context"
	"flag"
	"path/filepath"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

var oldRevision = flag.String("chaos.old", "", `git revision of the older relay in TestFault/TwoVersions; "": this one`)

// twoVersions: an upgrade and its roll-back. Both versions run on one table, and differ in
// how they claim, so they must agree on one mode.
func (x *trial) twoVersions() {
	server := testserver.Redis(x)
	from, to := x.postgres(testserver.Postgres(x)), x.redis([]string{server.Addr}, "orders")
	sink := `{url: "` + server.URL + `", stream: orders}`
	old := *x
	if *oldRevision != "" {
		old.program = x.build(*oldRevision)
	}
	older := old.start("older", pipeline(from, sink, "    claim: stamp"))
	var newer *relay
	from.during(300, to.count, func() { newer = x.start("newer", pipeline(from, sink, "    claim: range")) }, "orders")
	for i := range x.rounds(4) {
		from.during(300, to.count, func() { x.again([]*relay{newer, older}[i%2]) }, "orders")
	}
	from.drained()
	x.end(older, newer)
	from.account(to.arrived(), false)
}

// build builds the relay of a git revision.
func (x *trial) build(revision string) (program string) {
	x.Helper()
	tree := filepath.Join(x.dir, "tree")
	testkit.NoError(x, command(x.Context(), "git", "worktree", "add", "--detach", tree, revision))
	x.Cleanup(func() {
		testkit.NoError(x, command(context.WithoutCancel(x.Context()), "git", "worktree", "remove", "--force", tree))
	})
	program = filepath.Join(x.dir, "relay-"+filepath.Base(revision))
	testkit.NoError(x, command(x.Context(), "go", "build", "-C", tree, "-o", program, "./cmd/relay"))
	return program
}
