package cli

import (
	"fmt"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
)

// TestDeadChange_DiesAfterQuestion: what dies between the question and the answer stays open, also in a pipeline that had none.
func TestDeadChange_DiesAfterQuestion(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"discard", "replay"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			path := write(t, fmt.Sprintf("pipelines:\n  - {name: orders, source: {url: %[1]q}, sink: {url: \"stdout:\"}}\n  - {name: bills, source: {url: %[1]q, table: bills}, sink: {url: \"stdout:\"}}\n", db.url))
			do(t, nil, "migrate", "-c", path)
			die := func(pipeline string, ids ...int) {
				t.Helper()
				for _, id := range ids {
					db.bury(pipeline, [3]string{fmt.Sprint(id), "bad", "no such tenant"})
				}
			}
			die("orders", 1, 2, 3)
			terminal := onTerminal(t, "dead", verb, "--all", "-c", path)
			terminal.see("3 dead letters of orders?")
			die("orders", 10, 11, 12, 13)
			die("bills", 20)
			db.exec("UPDATE outbox_dead_letters SET died_at = clock_timestamp() WHERE event_id >= 10")
			terminal.answer("y")
			testkit.NoError(t, terminal.cmd.Wait())
			testkit.Equal(t, "open orders", db.open("orders"), "10 11 12 13")
			testkit.Equal(t, "open bills", db.open("bills"), "20")
			terminal.see("orders: " + verb + "ed 3 dead letters; 4 more died meanwhile: run it again")
			terminal.see("bills: " + verb + "ed 0 dead letters; 1 more died meanwhile: run it again")
		})
	}
}
