package relay_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// tenMinutes does what docs/ten-minutes.md says and wants what it shows.
func tenMinutes(t *testing.T, programs string) {
	term := newTerminal(t, programs, "DATABASE_URL="+testserver.Postgres(t))
	var (
		receiver, relay *running
		last            string // what the last commands wrote
		sent            bool   // the receiver is to show something
		shown           int
	)
	here := strings.NewReplacer()
	for _, b := range blocks(t, "docs/ten-minutes.md") {
		text := here.Replace(b.text)
		switch {
		case b.text == "go run ./examples/receiver":
			receiver = term.start("receiver", "-listen", "127.0.0.1:0")
			here = strings.NewReplacer("localhost:8080", listensOn(receiver))
		case b.text == "relay run -c relay.yaml":
			// Without the admin endpoint, whose port may be taken.
			term.must(`{ echo 'admin: {listen: ""}'; cat relay.yaml; } > run.yaml`)
			relay = term.start("relay", "run", "-c", "run.yaml")
			sent = true
		case b.lang == "sh":
			for _, m := range export.FindAllStringSubmatch(text, -1) {
				term.env = append(term.env, m[1])
			}
			last = term.must(text)
		case sent:
			receiver.says(&receiver.stdout, maskEntry, text)
			sent = false
			shown++
		case relay != nil: // the delete comes after the answer
			testserver.Eventually(t, func() error {
				if got := term.must(`psql "$DATABASE_URL" -At -c "SELECT count(*) FROM contact_activity_events"`); got != text {
					return fmt.Errorf("%s: %s rows are left", b.where, got)
				}
				return nil
			})
			shown++
		default:
			if mask := maskPlace(maskEntry(last)); mask != maskPlace(maskEntry(text)) {
				t.Errorf("%s: the commands before it show\n%s", b.where, last)
			}
			shown++
		}
	}
	if relay == nil || shown != 5 {
		t.Fatalf("%d outputs came, 5 were expected", shown)
	}
	relay.stop(os.Interrupt)
	if got := term.must("relay status -c relay.yaml --json"); !strings.Contains(got, `"pending": 0`) || !strings.Contains(got, `"dead": 0`) {
		t.Errorf("the status is %s", got)
	}
}

var (
	export  = regexp.MustCompile(`(?m)^export ([A-Z_]+=.*)$`)
	atPlace = regexp.MustCompile(`postgres://\*\*\*@\S+`)
)

// maskPlace hides where the database is.
func maskPlace(text string) string { return atPlace.ReplaceAllString(text, "*") }
