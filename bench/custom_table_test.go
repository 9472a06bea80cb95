package bench

import (
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// A custom table whose events are only references, and the table they refer to, which
// has the payload of the relay's own table.
const (
	customTable = "contact_activity_events"

	customSchemaSQL = `
CREATE TABLE contact_activities (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, payload json NOT NULL);
CREATE TABLE contact_activity_events (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  contact_activity_id bigint NOT NULL REFERENCES contact_activities,
  created_at timestamptz NOT NULL DEFAULT now(),
  group_id uuid
) WITH (fillfactor = 50)`

	fillCustomSQL = `
INSERT INTO contact_activity_events (contact_activity_id) SELECT id FROM contact_activities ORDER BY id`

	projectSQL = `
SELECT e.id, a.topic, a.payload
FROM {events} e JOIN contact_activities a ON a.id = e.contact_activity_id`
)

// BenchmarkProjection drains to Redis: the relay's own table by range and by stamp,
// and a custom table with a projection that joins another table.
func BenchmarkProjection(b *testing.B) {
	db := newDatabase(b)
	db.exec(b, customSchemaSQL)
	events := scaled(300_000)
	db.insert(b, "contact_activities", events)
	_, err := postgres.Migrate(b.Context(), db.url, postgres.SchemaConfig{Table: customTable, Custom: true})
	testkit.NoError(b, err)
	contenders := append(db.relays(buffer.ClaimRange, buffer.ClaimStamp), contender{
		name: "projection", table: customTable, fill: func(b *testing.B) { db.exec(b, fillCustomSQL) },
		start: func(b *testing.B, to broker, events int) drain {
			return db.pipeline(b, postgres.Config{Table: customTable, Custom: buffer.CustomTable{ID: "id", Project: projectSQL}}, to.sink, events)
		},
	})
	db.race(b, redisStream(b), contenders, events, cold)
}
