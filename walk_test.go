package relay_test

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// fiveMinutes does what the README says and wants what it shows.
func fiveMinutes(t *testing.T, programs string) {
	w := newWalk(t, programs)
	for _, b := range blocks(t, "README.md") {
		if b.section == "Quick start" {
			w.step(b)
		}
	}
	w.done()
}

// mistakes are shown in docs/commands.md.
func mistakes(t *testing.T, programs string) {
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
		t.Errorf("%d outputs are shown", shown)
	}
}

// demo ends `relay demo` after a while, as the README did. Each line that is shown
// must come, other numbers apart.
func demo(t *testing.T, programs string) {
	numbers := regexp.MustCompile(`[0-9]+([.][0-9]+)?(µs|ms|s)?`)
	mask := func(text string) string { return numbers.ReplaceAllString(text, "N") }
	for _, b := range blocks(t, "README.md") {
		if b.hint != "output: relay demo" {
			continue
		}
		r := newTerminal(t, programs).start("relay", "demo")
		r.says(&r.stderr, mask, "delivered 1, under way 1")
		r.stop(syscall.SIGINT)
		said := mask(r.stderr.String() + r.stdout.String())
		for line := range strings.SplitSeq(mask(b.text), "\n") {
			if !strings.Contains(said, line+"\n") {
				t.Errorf("%s: the demo does not say %q but\n%s", b.where, line, said)
			}
		}
		if !strings.Contains(r.stdout.String(), "missing 0, twice 0") {
			t.Errorf("the demo's account: %s", r.stdout.String())
		}
		return
	}
	t.Error("the README does not show the demo")
}

// walk is the five minutes of the README, in one terminal with a relay in a second
// and a sink's program in a third.
type walk struct {
	*terminal
	natsURL string
	places  *strings.Replacer // the README's servers to the test's

	relay   *running
	program *running // takes what a sink sends, or nil
	insert  string   // the commands that insert an event
	script  string   // the last commands that were run
	yaml    string   // what the README has in relay.yaml
	sink    string   // a sink that was shown and is not in use yet
	shown   int      // outputs that came as shown
}

func newWalk(t *testing.T, programs string) *walk {
	t.Helper()
	redis := testserver.Redis(t)
	w := &walk{
		terminal: newTerminal(t, programs, "DATABASE_URL="+testserver.Postgres(t)),
		natsURL:  testserver.NATS(t).URL,
	}
	w.places = strings.NewReplacer("localhost:6379", redis.Addr, "nats://localhost:4222", w.natsURL)

	// A reader's redis-cli finds Redis where it is by default, and writes to a
	// terminal, which FAKETTY makes it believe.
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(redis.Addr, ":")
	w.write("redis-cli", fmt.Sprintf("#!/bin/sh\nFAKETTY=1 exec '%s' -p %s \"$@\"\n", cli, port))
	w.must("chmod +x redis-cli")
	w.path = append(w.path, w.dir)
	w.write("schema.sql", read(t, "schema.sql"))
	return w
}

// entry is what differs each time in what is shown.
var entry = regexp.MustCompile(`[0-9]{13}-[0-9]+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[\d:.]+Z`)

func maskEntry(text string) string { return entry.ReplaceAllString(text, "*") }

func (w *walk) step(b block) {
	w.t.Helper()
	switch {
	case b.file() == "relay.yaml":
		w.yaml = b.text
		w.configure()
	case b.lang == "yaml":
		w.sink, w.program = b.text, nil
	case b.lang == "sh":
		w.run(b)
	case b.lang == "text":
		w.want(b)
		w.shown++
	default:
		w.t.Errorf("%s: what is to be done with %q?", b.where, b.lang)
	}
}

// configure writes relay.yaml, with the test's servers and without the admin
// endpoint, whose port may be taken.
func (w *walk) configure() {
	w.write("relay.yaml", "admin: {listen: \"\"}\n"+w.places.Replace(w.yaml)+"\n")
}

func (w *walk) run(b block) {
	w.t.Helper()
	if program, ok := strings.CutPrefix(b.text, "go run ./examples/"); ok {
		w.env = append(w.env, "NATS_URL="+w.natsURL)
		switch program {
		case "receiver":
			w.program = w.start(program, "-listen", "127.0.0.1:0")
			w.sink = strings.ReplaceAll(w.sink, "localhost:8080", listensOn(w.program))
		default:
			w.program = w.start(program)
		}
		return
	}
	if b.text == "relay run -c relay.yaml" {
		w.startRelay()
		return
	}
	w.script = b.text
	w.must(w.script)
	if strings.Contains(b.text, "INSERT INTO") {
		w.insert = b.text
	}
}

func (w *walk) startRelay() {
	w.t.Helper()
	w.relay = w.start("relay", "run", "-c", "relay.yaml")
	w.relay.says(&w.relay.stderr, asItIs, `msg="pipeline runs"`)
}

// want waits for what is shown: by the commands before it; or, after a sink, by
// the program that takes what is sent, or by the relay itself.
func (w *walk) want(b block) {
	w.t.Helper()
	if w.sink == "" {
		testserver.Eventually(w.t, func() error {
			if got := w.must(w.script); maskEntry(got) != maskEntry(b.text) {
				return fmt.Errorf("%s: %s\nshows\n%s", b.where, w.script, got)
			}
			return nil
		})
		return
	}
	w.relay.stop(syscall.SIGTERM)
	others, _, _ := strings.Cut(w.yaml, "    sink:")
	w.yaml = others + indent(w.sink, "    ")
	w.configure()
	w.sink = ""
	w.startRelay()
	w.must(w.insert)
	shows := w.relay
	if w.program != nil {
		shows = w.program
	}
	shows.says(&shows.stdout, maskEntry, b.text)
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(text, "\n", "\n"+by)
}

// done ends the walk. The other way to the tables is open too.
func (w *walk) done() {
	w.t.Helper()
	w.relay.stop(syscall.SIGTERM)
	if out := w.must("relay migrate -c relay.yaml"); !strings.HasPrefix(out, "orders: ") {
		w.t.Errorf("relay migrate says %q", out)
	}
	if w.shown < 5 {
		w.t.Errorf("the walk shows %d outputs", w.shown)
	}
}

// listensOn is where the example program receiver says it listens.
func listensOn(receiver *running) string {
	receiver.says(&receiver.stderr, asItIs, "listening on ")
	_, address, _ := strings.Cut(receiver.stderr.String(), "listening on ")
	return strings.TrimSpace(address)
}
