package relay_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// testTenMinutes follows docs/ten-minutes.md and compares the outputs.
func testTenMinutes(t *testing.T, programs string) {
	term := newTerminal(t, programs, "DATABASE_URL="+testserver.Postgres(t))
	var (
		receiver, relay *process
		last            string // output of the last commands
		sent            bool   // the receiver's output is next
		shown           int
	)
	here := strings.NewReplacer()
	for _, b := range blocks(t, "docs/ten-minutes.md") {
		text := here.Replace(b.text)
		switch {
		case b.lang == "yaml": // relay check reads it: see testSnippets
		case b.text == "go run ./examples/receiver":
			receiver = term.start("receiver", "-listen", "127.0.0.1:0")
			here = strings.NewReplacer("localhost:8080", listenAddress(receiver))
		case b.text == "relay run -c relay.yaml":
			// Without the admin endpoint, whose port may be in use.
			term.must(`{ echo 'admin: {listen: ""}'; cat relay.yaml; } > run.yaml`)
			relay = term.start("relay", "run", "-c", "run.yaml")
			sent = true
		case b.lang == "sh":
			for _, m := range export.FindAllStringSubmatch(text, -1) {
				term.env = append(term.env, m[1]+"="+term.must("printf %s "+m[2]))
			}
			last = term.must(text)
		case sent:
			receiver.waitFor(&receiver.stdout, maskIDs, text)
			sent = false
			shown++
		case relay != nil: // the delete follows the response
			testkit.Eventually(t, func() error {
				if got := term.must(`psql "$DATABASE_URL" -At -c "SELECT count(*) FROM contact_activity_events"`); got != text {
					return fmt.Errorf("%s: %s rows are left", b.where, got)
				}
				return nil
			})
			shown++
		default:
			if mask := maskDatabase(maskIDs(last)); mask != maskDatabase(maskIDs(text)) {
				t.Errorf("%s: the commands before it print\n%s", b.where, last)
			}
			shown++
		}
	}
	if relay == nil || shown != 5 {
		t.Fatalf("%d outputs; expected 5", shown)
	}
	relay.stop(os.Interrupt)
	if got := term.must("relay status -c relay.yaml --json"); !strings.Contains(got, `"pending": 0`) || !strings.Contains(got, `"dead": 0`) {
		t.Errorf("status prints %s", got)
	}
}

var (
	export      = regexp.MustCompile(`(?m)^export ([A-Z_]+)=(.*)$`)
	databaseURL = regexp.MustCompile(`postgres://\*\*\*@\S+`)
)

// maskDatabase hides the database's address.
func maskDatabase(text string) string { return databaseURL.ReplaceAllString(text, "*") }
