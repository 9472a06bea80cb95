package sqlite_test

import (
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
	"github.com/outboxrelay/relay/sink"
)

// TestClaim_InvalidUTF8: json_valid accepts text that is not UTF-8, which is not JSON for the reader of an envelope.
func TestClaim_InvalidUTF8(t *testing.T) {
	t.Parallel()
	const rows = `('a', CAST(X'22ff22' AS TEXT)), ('b', '"é"')`
	db, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "p"})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	exec(t, db, "INSERT INTO outbox_events (topic, payload) VALUES "+rows)
	_, custom := newCustom(t, "CREATE TABLE t (id INTEGER PRIMARY KEY, topic, payload, group_id TEXT); INSERT INTO t (topic, payload) VALUES "+rows,
		sqlite.Config{Custom: buffer.CustomTable{Project: "SELECT id, topic, payload FROM {events}"}})
	for _, b := range []*sqlite.Buffer{b, custom} {
		batch := claim(t, b, 10)
		testkit.Equal(t, "PayloadIsJSON", batch.PayloadIsJSON, false)
		first, second := string(sink.AppendEnvelope(nil, &batch.Batch, 0)), string(sink.AppendEnvelope(nil, &batch.Batch, 1))
		if !strings.Contains(first, `"payload_base64":"Iv8i"`) || !strings.Contains(second, `"payload":"é"`) {
			t.Errorf("envelopes:\n%s\n%s", first, second)
		}
	}
}
