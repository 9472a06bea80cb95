package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// diskFull: the relay can write neither its SQLite databases nor the file of its sink, as
// on a full disk, and later it can again. A limit on the size of its files does that
// without a file system of the test's own; the application is not limited.
//
// What was sent and could not be deleted is sent again: Redis recognises it, a file cannot.
func (x *trial) diskFull() {
	server := testserver.Redis(x)
	toRedis, toFile := x.sqlite("redis"), x.sqlite("file")
	stream, path := x.redis([]string{server.Addr}, "orders"), filepath.Join(x.dir, "events.ndjson")
	l, err := new(net.ListenConfig).Listen(x.Context(), "tcp", "127.0.0.1:0")
	testkit.NoError(x, err)
	admin := l.Addr().String()
	testkit.NoError(x, l.Close())
	_, second, _ := strings.Cut(pipeline(toFile, `{url: "file://`+path+`"}`), "pipelines:\n")
	yaml := pipeline(toRedis, `{url: "`+server.URL+`", stream: orders}`) + strings.Replace(second, "name: shop", "name: audit", 1)
	p := x.start("relay", strings.Replace(yaml, `listen: ""`, "listen: "+admin, 1))
	size := func() int64 { return x.size(path) }

	for i := range x.rounds(2) {
		toRedis.during(200, stream.count, func() {
			toFile.during(200, size, func() {
				limit := 0
				if i%2 == 1 {
					limit = int(size()) + 100 // a part of the next batch fits
				}
				x.limit(p, strconv.Itoa(limit))
			}, "orders")
		}, "orders")
		// So that there is something to write, also if all was delivered before.
		testkit.NoError(x, toRedis.insert(50, "orders"))
		testkit.NoError(x, toFile.insert(50, "orders"))
		testkit.Eventually(x, func() error { return x.health(p, 1) })
		x.limit(p, "unlimited")
		toRedis.drained()
		toFile.drained()
		testkit.Eventually(x, func() error { return x.health(p, 0) })
	}
	x.end(p)
	toRedis.account(stream.arrived(), false)
	toFile.account(x.lines(path), true)
}

// limit limits the size of the files that the relay writes.
func (x *trial) limit(p *relay, bytes string) {
	x.Helper()
	testkit.NoError(x, command(x.Context(), "prlimit", "--pid", strconv.Itoa(p.process.cmd.Process.Pid), "--fsize="+bytes+":unlimited"))
}

// health returns nil if relay health --ready exits with a status.
func (x *trial) health(p *relay, status int) error {
	err := command(x.Context(), x.program, "health", "--ready", "-c", p.config)
	if (err == nil) != (status == 0) {
		return fmt.Errorf("relay health --ready: %v; expected exit status %d", err, status) //nolint:errorlint // err may be nil
	}
	return nil
}

// size returns the size of a file, 0 if there is none.
func (x *trial) size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// lines returns how often each event is in a file of the relay, whose lines must be whole.
func (x *trial) lines(path string) map[int64]int {
	x.Helper()
	file, err := os.Open(path)
	testkit.NoError(x, err)
	defer file.Close()
	found := map[int64]int{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var e struct{ ID string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			x.Errorf("the line %q: %v", lines.Text(), err)
			continue
		}
		id, err := parseID(e.ID)
		testkit.NoError(x, err)
		found[id]++
	}
	return found
}
