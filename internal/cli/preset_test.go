package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testserver"
)

// arrived is an event in a file, without its times.
type arrived struct {
	ID      string            `json:"id"`
	Topic   string            `json:"topic"`
	Key     string            `json:"key"`
	Payload any               `json:"payload"`
	Bytes   []byte            `json:"payload_base64"`
	Headers map[string]string `json:"headers"`
}

// arrivals are the events in a file.
func arrivals(t *testing.T, path string) []arrived {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		return nil // not yet
	}
	var all []arrived
	for line := range strings.Lines(string(text)) {
		var one arrived
		if !strings.HasSuffix(line, "\n") {
			break
		}
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, one)
	}
	return all
}

// Tables as other projects create them, and rows as they write them.
const (
	debeziumDDL = `CREATE TABLE "outboxevent" (
		id uuid NOT NULL PRIMARY KEY, aggregatetype character varying(255) NOT NULL, aggregateid character varying(255) NOT NULL,
		type character varying(255) NOT NULL, payload %s)`
	debeziumRow = `INSERT INTO outboxevent VALUES ('406c07f3-26f0-4eea-a50c-109940064b8f', 'Order', '1', 'OrderCreated', '{"id": 1, "lineItems": []}')`

	railsDDL = `CREATE TABLE "outboxes" (
		"id" bigserial primary key, "identifier" uuid NOT NULL, "event" character varying NOT NULL, "payload" jsonb,
		"aggregate" character varying NOT NULL, "aggregate_identifier" uuid NOT NULL,
		"created_at" timestamp(6) NOT NULL, "updated_at" timestamp(6) NOT NULL);
		CREATE UNIQUE INDEX "index_outboxes_on_identifier" ON "outboxes" ("identifier");
		CREATE INDEX "index_outboxes_on_aggregate_identifier" ON "outboxes" ("aggregate_identifier")`
	railsRow = `INSERT INTO outboxes (identifier, event, payload, aggregate, aggregate_identifier, created_at, updated_at)
		VALUES ('5f1c1a3e-0b5c-4e7e-9a39-5d1f0a6c0001', 'USER_CREATED', '{"before": null, "after": {"id": 7}}', 'User', '5f1c1a3e-0b5c-4e7e-9a39-5d1f0a6c0007', now(), now())`

	symfonyDDL = `CREATE TABLE messenger_messages (
		id BIGSERIAL NOT NULL, body TEXT NOT NULL, headers TEXT NOT NULL, queue_name VARCHAR(190) NOT NULL,
		created_at TIMESTAMP(0) WITHOUT TIME ZONE NOT NULL, available_at TIMESTAMP(0) WITHOUT TIME ZONE NOT NULL,
		delivered_at TIMESTAMP(0) WITHOUT TIME ZONE DEFAULT NULL, PRIMARY KEY(id));
		CREATE INDEX IDX_75EA56E0FB7336F0 ON messenger_messages (queue_name);
		CREATE INDEX IDX_75EA56E0E3BD61CE ON messenger_messages (available_at);
		CREATE INDEX IDX_75EA56E016BA31DB ON messenger_messages (delivered_at)`
	symfonyRows = `INSERT INTO messenger_messages (body, headers, queue_name, created_at, available_at) VALUES
		('{"orderId":1}', '{"type":"App\\Message\\OrderPlaced","Content-Type":"application/json"}', 'default', now(), now()),
		('O:36:\"Symfony\\Component\\Messenger\\Envelope\":0:{}', '[]', 'async', now(), now())`

	watermillDDL = `CREATE TABLE IF NOT EXISTS "watermill_events_to_forward" (
		"offset" BIGSERIAL, "uuid" VARCHAR(36) NOT NULL, "created_at" TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
		"payload" JSON DEFAULT NULL, "metadata" JSON DEFAULT NULL, "transaction_id" xid8 NOT NULL,
		PRIMARY KEY ("transaction_id", "offset"))`
	watermillRows = `INSERT INTO watermill_events_to_forward (uuid, payload, metadata, transaction_id) VALUES
		('8f0c9f2e-1', '{"destination_topic":"googlecloud","uuid":"8f0c9f2e-2","payload":"eyJuIjogMX0=","metadata":{"customer":"7"}}', '{}', pg_current_xact_id()),
		('8f0c9f2e-3', '{"destination_topic":"kafka","uuid":"8f0c9f2e-4","payload":"AP8=","metadata":null}', '{}', pg_current_xact_id())`
)

// After the fixes that doctor prints, the events of known table layouts arrive.
func TestPresets(t *testing.T) {
	t.Parallel()
	order := arrived{
		ID: "406c07f3-26f0-4eea-a50c-109940064b8f", Topic: "outbox.event.Order", Key: "1", Payload: map[string]any{"id": 1.0, "lineItems": []any{}},
		Headers: map[string]string{"id": "406c07f3-26f0-4eea-a50c-109940064b8f", "eventType": "OrderCreated"},
	}
	type preset struct {
		source, table, ddl, rows string
		want                     []arrived
	}
	cases := map[string]preset{
		"rails": {"preset: rails, table: outboxes", "outboxes", railsDDL, railsRow, []arrived{{
			ID: "1", Topic: "USER_CREATED", Key: "5f1c1a3e-0b5c-4e7e-9a39-5d1f0a6c0007", Payload: map[string]any{"before": nil, "after": map[string]any{"id": 7.0}},
			Headers: map[string]string{"identifier": "5f1c1a3e-0b5c-4e7e-9a39-5d1f0a6c0001", "aggregate": "User"},
		}}},
		"symfony": {"preset: symfony, table: messenger_messages", "messenger_messages", symfonyDDL, symfonyRows, []arrived{
			{ID: "1", Topic: "default", Payload: map[string]any{"orderId": 1.0}, Headers: map[string]string{"type": `App\Message\OrderPlaced`, "Content-Type": "application/json"}},
			{ID: "2", Topic: "async", Bytes: []byte(`O:36:\"Symfony\\Component\\Messenger\\Envelope\":0:{}`)},
		}},
		"watermill": {"preset: watermill, table: watermill_events_to_forward", "watermill_events_to_forward", watermillDDL, watermillRows, []arrived{
			{ID: "1", Topic: "googlecloud", Payload: map[string]any{"n": 1.0}, Headers: map[string]string{"customer": "7", "_watermill_message_uuid": "8f0c9f2e-2"}},
			{ID: "2", Topic: "kafka", Bytes: []byte("\x00\xff"), Headers: map[string]string{"_watermill_message_uuid": "8f0c9f2e-4"}},
		}},
		"debezium, a tombstone": {
			"preset: debezium, table: outboxevent", "outboxevent", fmt.Sprintf(debeziumDDL, "jsonb"),
			`INSERT INTO outboxevent VALUES ('406c07f3-26f0-4eea-a50c-109940064b8f', 'Order', '1', 'OrderCreated', NULL)`,
			[]arrived{{ID: order.ID, Topic: order.Topic, Key: order.Key, Headers: order.Headers}},
		},
	}
	for _, payload := range []string{"jsonb", "json", "text", "varchar(8000)", "bytea"} {
		cases["debezium, "+payload] = preset{"preset: debezium, table: public.outboxevent", "outboxevent", fmt.Sprintf(debeziumDDL, payload), debeziumRow, []arrived{order}}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.exec(c.ddl)
			db.exec(c.rows)
			file := filepath.Join(t.TempDir(), "events.ndjson")
			path := write(t, "admin: {listen: \"\"}\npipelines:\n  - name: p\n    source: {url: \""+db.url+"\", schema: relay, "+c.source+"}\n    sink: {url: \"file://"+file+"\"}\n")
			do(t, nil, "migrate", "-c", path).want(t, 0, "p: applied schema relay", "")
			db.fix(path)
			run := start(t, nil, "run", "-c", path)
			testserver.Eventually(t, func() error {
				if left := db.count("SELECT count(*) FROM " + c.table); left > 0 {
					return fmt.Errorf("%d events are left, of %d", left, len(c.want))
				}
				return nil
			})
			run.signal(os.Interrupt)
			if code := run.exit(); code != 0 {
				t.Errorf("exit status %d", code)
			}
			if diff := cmp.Diff(c.want, arrivals(t, file)); diff != "" {
				t.Errorf("arrived (-want +got):\n%s", diff)
			}
		})
	}
}

// fix applies the fixes that doctor prints until it finds no problem.
func (d *database) fix(path string) {
	d.t.Helper()
	for range 3 {
		var found doctorOutput
		if err := json.Unmarshal([]byte(do(d.t, nil, "doctor", "-c", path, "--json").stdout), &found); err != nil {
			d.t.Fatal(err)
		}
		if found.Problems == 0 {
			return
		}
		for _, p := range found.Pipelines {
			for _, f := range p.Findings {
				if f.Level == "error" {
					d.exec(f.Fix)
				}
			}
		}
	}
	d.t.Fatalf("doctor still finds problems: %s", do(d.t, nil, "doctor", "-c", path).stdout)
}
