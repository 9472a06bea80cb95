package cli

import (
	"path/filepath"
	"testing"
)

// On a terminal init asks, reports an invalid answer, and asks again.
func TestInit_Questions(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	db.exec(activities + "; CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE pairs (a int, b int, PRIMARY KEY (a, b))")
	path := filepath.Join(t.TempDir(), "relay.yaml")
	terminal := onTerminalWith(t, []string{"RELAY_SOURCE_URL=" + db.url}, "init", "-o", path)
	for _, step := range []struct{ says, answer string }{
		{"1  contact_activity_events  has a group_id, refers to contact_activities", "pairs"},
		{"table pairs cannot hold events: its primary key has 2 columns", "orders"},
		{"The relay deletes each row of orders after delivery. Does the table hold nothing but events?", "n"},
		{"choose another table", ""},
		{"\x1b[1mSink: ", "htp://bob:s3cret@x"},
		{"sink.url has an unknown scheme; expected ", "http://bob:s3cret@localhost/bulk"},
		{"How many events does a request to the API take at most? (1 to 1000000)\x1b[0m [100]", "0"},
		{"the number of events is 0; expected a number from 1 to 1000000", "50"},
		{"Pipeline name, of a-z, 0-9, _ and -\x1b[0m [contact_activity_events]", ""},
	} {
		terminal.see(step.says)
		terminal.answer(step.answer)
	}
	if err := terminal.cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, terminal.said.String())
	}
	golden(t, "asked", path)
}
