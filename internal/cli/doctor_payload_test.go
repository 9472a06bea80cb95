package cli

import (
	"strings"
	"testing"
)

func TestDoctor_PayloadsEncodedTwice(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, func(t *testing.T, db *database) {
		path := write(t, onePipeline("orders", db.url, "stdout:"))
		db.insert(15)
		got := doctorJSON(t, path, 0)
		if got.find("orders", "warning", "payloads") != "" {
			t.Errorf("of sound payloads the diagnosis is %+v", got)
		}
		for range 5 {
			db.exec(`INSERT INTO outbox_events (topic, payload) VALUES ('orders', '"{\"a\":1}"')`)
		}
		got = doctorJSON(t, path, 0)
		text := got.find("orders", "warning", "payloads")
		if !strings.HasPrefix(text, "5 of the next 20 payloads are JSON strings that contain JSON") || !strings.Contains(text, "> ") {
			t.Errorf("the warning is %q", text)
		}
	})
}
