package relay_test

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// testQuickStart follows the README and compares the outputs.
func testQuickStart(t *testing.T, programs string) {
	q := newQuickStart(t, programs)
	for _, b := range blocks(t, "README.md") {
		if b.section == "Quick start" {
			q.apply(b)
		}
	}
	q.finish()
}

// testConfigErrors runs the wrong configuration of docs/commands.md.
func testConfigErrors(t *testing.T, programs string) {
	term := newTerminal(t, programs)
	script, shown := "", 0
	for _, b := range blocks(t, "docs/commands.md") {
		switch {
		case b.file() != "":
			term.write(b.file(), b.text+"\n")
		case b.lang == "sh":
			script = b.text
		case b.lang == "text":
			if got, err := term.sh(script); err == nil || got != b.text {
				t.Errorf("%s: %s: %v\n%s", b.where, script, err, got)
			}
			shown++
		}
	}
	if shown != 1 {
		t.Errorf("docs/commands.md shows %d outputs; expected 1", shown)
	}
}

// testDemo stops `relay demo` after its count, as the README did. Each line of the README
// must appear, with other numbers.
func testDemo(t *testing.T, programs string) {
	numbers := regexp.MustCompile(`[0-9]+([.][0-9]+)?(µs|ms|s)?`)
	mask := func(text string) string { return numbers.ReplaceAllString(maskIDs(text), "N") }
	for _, b := range blocks(t, "README.md") {
		if b.hint != "output: relay demo" {
			continue
		}
		r := newTerminal(t, programs).start("relay", "demo")
		r.waitFor(&r.stderr, mask, "Orders go on until you press Ctrl-C.")
		r.stop(syscall.SIGINT)
		got := mask(r.stderr.String() + r.stdout.String())
		for line := range strings.SplitSeq(mask(b.text), "\n") {
			if !strings.Contains(got, line+"\n") {
				t.Errorf("%s: the demo does not print %q but\n%s", b.where, line, got)
			}
		}
		if !strings.Contains(r.stdout.String(), "missing 0, duplicates 0") {
			t.Errorf("the demo's account: %s", r.stdout.String())
		}
		return
	}
	t.Error("the README does not show the demo")
}

// quickStart follows the README in one terminal, with a relay in a second and a
// sink's program in a third.
type quickStart struct {
	*terminal
	natsURL string
	servers *strings.Replacer // from the README's servers to the test's

	relay   *process
	program *process // receives what a sink sends, or nil
	insert  string   // commands that insert an event
	script  string   // the last commands
	yaml    string   // relay.yaml in the README
	sink    string   // the next sink, not in use yet
	shown   int      // outputs that matched
}

func newQuickStart(t *testing.T, programs string) *quickStart {
	t.Helper()
	redis := testserver.Redis(t)
	q := &quickStart{
		terminal: newTerminal(t, programs, "DATABASE_URL="+testserver.Postgres(t)),
		natsURL:  testserver.NATS(t).URL,
	}
	q.servers = strings.NewReplacer("localhost:6379", redis.Addr, "nats://localhost:4222", q.natsURL)

	// The reader's redis-cli uses the default port and writes to a terminal, which
	// FAKETTY simulates.
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(redis.Addr, ":")
	q.write("redis-cli", fmt.Sprintf("#!/bin/sh\nFAKETTY=1 exec '%s' -p %s \"$@\"\n", cli, port))
	q.must("chmod +x redis-cli")
	q.path = append(q.path, q.dir)
	q.write("schema.sql", read(t, "schema.sql"))
	return q
}

// variableParts matches what differs in each run.
var variableParts = regexp.MustCompile(`[0-9]{13}-[0-9]+|(:[0-9a-z]{10}:)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[\d:.]+Z`)

func maskIDs(text string) string { return variableParts.ReplaceAllString(text, "*") }

// ages matches an age in a table, with the blanks that align it.
var ages = regexp.MustCompile(`(?m) +(\d+ms|\d+(\.\d+)?s|\d+m \d+s)(  |$)`)

// maskAges is maskIDs, and makes the ages of a table alike.
func maskAges(text string) string {
	text = ages.ReplaceAllString(maskIDs(text), " * ")
	return regexp.MustCompile(` +(\n|$)?`).ReplaceAllString(text, " $1")
}

func (q *quickStart) apply(b block) {
	q.t.Helper()
	switch {
	case b.file() == "relay.yaml":
		q.yaml = b.text
		q.configure()
	case b.lang == "yaml":
		q.sink, q.program = b.text, nil
	case b.lang == "sh":
		q.run(b)
	case b.lang == "text":
		q.expectOutput(b)
		q.shown++
	default:
		q.t.Errorf("%s: blocks of %q are not expected here", b.where, b.lang)
	}
}

// configure writes relay.yaml with the test's servers and without the admin
// endpoint, whose port may be in use.
func (q *quickStart) configure() {
	q.write("relay.yaml", "admin: {listen: \"\"}\n"+q.servers.Replace(q.yaml)+"\n")
}

func (q *quickStart) run(b block) {
	q.t.Helper()
	if program, ok := strings.CutPrefix(b.text, "go run ./examples/"); ok {
		q.env = append(q.env, "NATS_URL="+q.natsURL)
		switch program {
		case "receiver":
			q.program = q.start(program, "-listen", "127.0.0.1:0")
			q.sink = strings.ReplaceAll(q.sink, "localhost:8080", listenAddress(q.program))
		default:
			q.program = q.start(program)
		}
		return
	}
	if b.text == "relay run -c relay.yaml" {
		q.startRelay()
		return
	}
	q.script = b.text
	q.must(q.script)
	if strings.Contains(b.text, "INSERT INTO") {
		q.insert = b.text
	}
}

func (q *quickStart) startRelay() {
	q.t.Helper()
	q.relay = q.start("relay", "run", "-c", "relay.yaml")
	q.relay.waitFor(&q.relay.stderr, verbatim, `msg="pipeline runs"`)
}

// expectOutput waits for an output: of the commands before it or, after a sink, of the
// program that receives its requests, or of the relay.
func (q *quickStart) expectOutput(b block) {
	q.t.Helper()
	if q.sink == "" {
		testkit.Eventually(q.t, func() error {
			if got := q.must(q.script); maskAges(got) != maskAges(b.text) {
				return fmt.Errorf("%s: %s\nprints\n%s", b.where, q.script, got)
			}
			return nil
		})
		return
	}
	q.relay.stop(syscall.SIGTERM)
	others, _, _ := strings.Cut(q.yaml, "    sink:")
	q.yaml = others + indent(q.sink, "    ")
	q.configure()
	q.sink = ""
	q.startRelay()
	q.must(q.insert)
	printer := q.relay
	if q.program != nil {
		printer = q.program
	}
	printer.waitFor(&printer.stdout, maskIDs, b.text)
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(text, "\n", "\n"+by)
}

// finish stops the relay. `relay migrate` must accept the tables of schema.sql.
func (q *quickStart) finish() {
	q.t.Helper()
	q.relay.stop(syscall.SIGTERM)
	if out := q.must("relay migrate -c relay.yaml"); !strings.HasPrefix(out, "orders: ") {
		q.t.Errorf("relay migrate prints %q", out)
	}
	if q.shown < 7 {
		q.t.Errorf("the README shows %d outputs; expected 7 or more", q.shown)
	}
}

// listenAddress returns the address of the example program receiver.
func listenAddress(receiver *process) string {
	receiver.waitFor(&receiver.stderr, verbatim, "listening on ")
	_, address, _ := strings.Cut(receiver.stderr.String(), "listening on ")
	return strings.TrimSpace(address)
}
