package chaos

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// databaseClock: the clock of the database, which decides about leases and retries, jumps
// while relays are killed. An hour forward, all leases end at once while their owners
// work. Three seconds back, a lease lasts longer. (After a jump far back, what a killed
// relay held would wait as long, as documented.) In a long run the clock of one of the
// relays jumps as well.
func (x *trial) databaseClock() {
	clock := filepath.Join(x.dir, "clock")
	offset := 0
	set := func(seconds int) {
		offset += seconds
		testkit.NoError(x, os.WriteFile(clock, []byte(testserver.ClockOffset(offset)), 0o644)) //nolint:gosec // the server's user reads it
	}
	set(0)
	server := testserver.OwnPostgres(x, testserver.PostgresOptions{Clock: clock})
	redis := testserver.Redis(x)
	from, to := x.postgres(server.URL), x.redis([]string{redis.Addr}, "orders")
	yaml := pipeline(from, `{url: "`+redis.URL+`", stream: orders}`)
	other := *x
	if isLong() {
		other.program = x.buildWithJumpingClock()
	}
	relays := []*relay{x.start("one", yaml), other.start("two", yaml)}
	for i := range x.rounds(4) {
		from.during(300, to.count, func() {
			set([]int{3600, -3}[i%2])
			x.again(relays[i%2])
		}, "orders")
	}
	from.drained()
	x.end(relays...)
	from.account(to.arrived(), false)
}

// jumpingNow replaces the reading of the wall clock in time.Now. The clock jumps every two
// seconds: an hour forward, a day back, and by small and large steps. The monotonic clock
// does not.
const jumpingNow = `
	sec, nsec, mono := runtimeNow()
	sec += [...]int64{0, 3600, -86400, 30, -2, 400 * 86400}[mono/2e9%6]`

// buildWithJumpingClock builds the relay with its own copy of the package time: a Go
// program does not ask libc, so faketime does not reach it.
func (x *trial) buildWithJumpingClock() (program string) {
	x.Helper()
	root, err := exec.CommandContext(x.Context(), "go", "env", "GOROOT").Output()
	testkit.NoError(x, err)
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(original)
	testkit.NoError(x, err)
	changed := strings.Replace(string(text), "\n\tsec, nsec, mono := runtimeNow()", jumpingNow, 1)
	if changed == string(text) {
		x.Fatalf("%s reads the clock in another way than this test expects", original)
	}
	copied, overlay := filepath.Join(x.dir, "time.go"), filepath.Join(x.dir, "overlay.json")
	testkit.NoError(x, os.WriteFile(copied, []byte(changed), 0o600))
	list, err := json.Marshal(map[string]map[string]string{"Replace": {original: copied}})
	testkit.NoError(x, err)
	testkit.NoError(x, os.WriteFile(overlay, list, 0o600))
	program = filepath.Join(x.dir, "relay-clock")
	testkit.NoError(x, command(x.Context(), "go", "build", "-overlay", overlay, "-o", program, "../cmd/relay"))
	return program
}
