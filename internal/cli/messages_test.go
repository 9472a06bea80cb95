package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMessages compares what commands print with testdata/messages.txt, which people read: go test ./internal/cli -run TestMessages -update
// writes it.
func TestMessages(t *testing.T) {
	t.Parallel()
	const (
		good = "pipelines:\n  - name: orders\n    source: {url: \"sqlite://DIR/app.db\"}\n    sink: {url: \"file://DIR/orders.ndjson\"}\n"
		bad  = `admin: {listen: 9090}
pipelines:
  - name: orders
    source: {url: "mysql://app@localhost/app"}
    batchsize: 500
    retry: {max: 10}
    sink: {url: "redis://localhost:6379/0", steam: orders}
  - name: orders
    source: {url: "postgres://app@localhost/app", table: "a b"}
    workers: many
    sink: {url: "https://api.example/bulk", method: GET, results: ".items | ["}
`
		secret = "pipelines:\n  - name: orders\n    source: {url: \"${DATABASE}\"}\n    sink: {url: \"https://api.example/bulk\", bearer: \"${TOKEN}\"}\n"
	)
	var got bytes.Buffer
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(text, "DIR", dir)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(commands ...string) {
		for _, args := range commands {
			r := startProgram(t, nil, "sh", "-c", "cd "+dir+" && exec "+self+" "+args)
			code := r.exit()
			fmt.Fprintf(&got, "$ relay %s\n", args)
			for line := range strings.Lines(r.stdout.String() + r.stderr.String()) {
				got.WriteString("    " + strings.ReplaceAll(strings.TrimRight(line, " \n"), dir, "/srv") + "\n")
			}
			fmt.Fprintf(&got, "    (exit status %d)\n\n", code)
		}
	}
	section := func(text string) { got.WriteString("# " + text + "\n\n") }

	section("Wrong usage")
	run("status", "stauts", "dead lits", "dead show 17", "run 17", "status --color", "retry -y", "dead list --limit many -c x.yaml", "dead list --older-than 3 -c x.yaml",
		"dead replay -c x.yaml", "status -c x.yaml", "schema oracle", "schema mysql", "completion tcsh", "demo --events -1")
	section("A wrong configuration")
	file("bad.yaml", bad)
	file("secret.yaml", secret)
	file("empty.yaml", "")
	file("tab.yaml", "pipelines:\n\t- name: orders\n")
	run("check bad.yaml", "check secret.yaml", "dead list -c secret.yaml", "check empty.yaml", "check tab.yaml")
	section("A new database")
	file("relay.yaml", good)
	run("check", "status", "migrate", "migrate", "status", "dead list", "dead list --by error", "dead replay --id 17", "dead replay --id 17 --edit", "dead replay", "retry --now", "sinks list", "verify",
		"preview", "doctor", "doctor --quiet", "dead list --pipeline invoices", "dead list --sink crm")
	section("Nobody is there")
	file("away.yaml", `admin: {listen: "127.0.0.1:1"}
pipelines:
  - name: orders
    source: {url: "postgres://app@127.0.0.1:1/app"}
    sink: {url: "redis://127.0.0.1:1/0"}
`)
	file("sinks.yaml", strings.ReplaceAll(good, "file://DIR/orders.ndjson", "nats://127.0.0.1:1"))
	run("status -c away.yaml", "doctor -q -c away.yaml", "migrate -c away.yaml", "dead list -c away.yaml", "health -c away.yaml", "doctor -q -c sinks.yaml")

	path := filepath.Join("testdata", "messages.txt")
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("the messages differ from %s; run the test with -update, and read what changed:\n%s", path, got.String())
	}
}
