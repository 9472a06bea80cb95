package recipes_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
)

// slack has orders for a warehouse that rejects a request with an order of 0 cents, and
// a channel that is notified of those orders.
func slack(t *testing.T, program string) {
	warehouse := newAPI(t, slowDay, nil, map[fault]func(http.ResponseWriter){
		busy: later(http.StatusTooManyRequests, "slow down"),
		down: later(http.StatusServiceUnavailable, "closed"),
	})
	warehouse.answer = func(w http.ResponseWriter, r *http.Request, body []byte) {
		var batch struct {
			Events []struct {
				ID      string
				Payload struct{ Cents int }
			}
		}
		if err := decode(body, &batch); err != nil {
			t.Error(err)
		}
		for _, e := range batch.Events {
			if e.Payload.Cents == 0 {
				say(w, http.StatusUnprocessableEntity, map[string]string{"error": "order " + e.ID + " <costs & nothing>"})
				return
			}
		}
		for _, e := range batch.Events {
			warehouse.accept(r, e.ID)
		}
		say(w, http.StatusOK, map[string]any{})
	}
	channel := newSlack(t)
	r := cook(t, program, "slack", "ORDERS_URL="+warehouse.URL, "SLACK_WEBHOOK_URL="+channel.URL+slackPath)

	var good []string
	bad, lines := map[string]string{}, []string{}
	for i := range 400 {
		cents := i + 1
		if i%100 == 30 {
			cents = 0
		}
		r.exec("INSERT INTO orders (customer, cents) VALUES ('customer-7', $1)", cents)
		id := strconv.FormatInt(r.id("SELECT max(id) FROM outbox_events"), 10)
		if cents > 0 {
			good = append(good, id)
			continue
		}
		bad[id] = "order " + id + " <costs & nothing>"
		lines = append(lines, fmt.Sprintf("order %s &lt;costs &amp; nothing&gt;", id))
	}

	run := r.start()
	r.drained()
	testkit.Eventually(t, func() error {
		said := channel.said()
		for _, line := range lines {
			if !slices.ContainsFunc(said, func(s string) bool {
				return strings.HasPrefix(s, "• event ") && strings.Contains(s, line)
			}) {
				return fmt.Errorf("Slack got %q; expected %q", said, line)
			}
		}
		return nil
	})
	run.stop()
	warehouse.want(good, bad, r.dead())
	channel.want(nil, nil, nil)
}
