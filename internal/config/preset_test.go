package config

import (
	"fmt"
	"strings"
	"testing"
)

// Preset projections quote the names of tables and columns.
func TestPreset_QuotesNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ source, id, has string }{
		{`{url: "postgres://db/app", preset: debezium, table: outbox}`, "id", `SELECT e."id" AS id, 'outbox.event.' || e.aggregatetype AS topic`},
		{`{url: "postgres://db/app", preset: debezium, table: outbox}`, "id", `FROM {events} e`},
		{`{url: "postgres://db/app", preset: debezium, table: '"my ""odd"" schema"."Out.Box"', id: Event Id}`, "Event Id", `SELECT e."Event Id" AS id`},
		{`{url: "postgres://db/app", preset: debezium, table: 'x', id: Event Id}`, "Event Id", `jsonb_build_object('id', e."Event Id", 'eventType'`},
		{`{url: "postgres://db/app", preset: watermill, table: watermill_events}`, "offset", `SELECT e."offset" AS id`},
		{`{url: "sqlite:///app.db", preset: rails, table: outboxes, id: 'Out"box'}`, `Out"box`, `SELECT e."Out""box" AS id`},
		{`{url: "sqlite:///app.db", preset: symfony, table: messenger_messages}`, "id", `CAST(e.body AS BLOB)`},
	} {
		parsed, err := Parse("relay.yaml", []byte(fmt.Sprintf("pipelines:\n  - name: p\n    source: %s\n    sink: {url: \"nats://n\"}\n", c.source)), lookup)
		if err != nil {
			t.Errorf("%s: %v", c.source, err)
			continue
		}
		if own := parsed.Pipelines[0].Source.Custom; own.ID != c.id || !strings.Contains(own.Project, c.has) {
			t.Errorf("%s: %q is missing in %+v", c.source, c.has, own)
		}
	}
}
