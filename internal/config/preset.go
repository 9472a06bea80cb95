package config

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// preset is a known table layout.
type preset struct {
	// id is the primary key.
	id string
	// createdAt is the column that ages are measured by; "" for created_at.
	createdAt string
	// where is which rows are events, by driver, and mark what those that are done are marked with; nil if they are deleted.
	where map[string]string
	mark  map[string]string
	// project is the projection by driver; e.ID stands for the primary key.
	project map[string]string
}

// presets are the outbox tables of other projects. Event stores have no preset: they have no column for a mark.
var presets = map[string]preset{
	// Debezium's outbox event router with its default settings, and the type in a header, as
	// table.fields.additional.placement can add it.
	// https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html
	//
	// Its Quarkus extension adds the columns timestamp and tracingspancontext (OutboxEventHbmWriter), which other tables lack: the
	// name of a column that the row lacks is that of "absent". tracingspancontext has the lines of Java properties; as headers, which
	// carry no line breaks everywhere, they are the W3C's traceparent and tracestate, and all of them on one line.
	"debezium": {id: "id", project: map[string]string{"postgres": `
SELECT e.ID AS id, 'outbox.event.' || e.aggregatetype AS topic, e.aggregateid::text AS key,
       coalesce(e.payload, 'null') AS payload,
       jsonb_strip_nulls(jsonb_build_object('id', e.ID, 'eventType', e.type,
         'tracingspancontext', btrim(regexp_replace(regexp_replace(span.context, '(^|\n)#[^\n]*', '\1', 'g'), '\s+', ' ', 'g')),
         'traceparent', substring(span.context FROM '(?:^|\n)traceparent=(\S+)'),
         'tracestate', replace(substring(span.context FROM '(?:^|\n)tracestate=(\S+)'), '\', ''))) AS headers,
       (SELECT "timestamp" FROM (SELECT e.*) AS own) AS created_at
FROM {events} e
CROSS JOIN (SELECT NULL::text AS tracingspancontext, NULL::timestamptz AS "timestamp") AS absent
CROSS JOIN LATERAL (SELECT (SELECT tracingspancontext::text FROM (SELECT e.*) AS own) AS context) AS span`}},
	// The active_outbox gem, which writes events and sends none. https://github.com/rootstrap/active_outbox
	"rails": {id: "id", project: map[string]string{
		"postgres": `
SELECT e.ID AS id, e.event AS topic, e.aggregate_identifier::text AS key,
       coalesce(e.payload, 'null') AS payload,
       jsonb_build_object('identifier', e.identifier, 'aggregate', e.aggregate) AS headers
FROM {events} e`,
		"sqlite": `
SELECT e.ID AS id, e.event AS topic, CAST(e.aggregate_identifier AS TEXT) AS key,
       coalesce(e.payload, 'null') AS payload,
       json_object('identifier', e.identifier, 'aggregate', e.aggregate) AS headers
FROM {events} e`,
	}},
	// The event publication registry of Spring Modulith, in the schemas of 1.x and 2.x, which differ in columns that are not used here. The application must not
	// listen to the events that it leaves to the relay. https://docs.spring.io/spring-modulith/reference/events.html
	"spring-modulith": {
		id: "id", createdAt: "publication_date", where: map[string]string{"postgres": "completion_date IS NULL"}, mark: map[string]string{"completion_date": "now()"},
		project: map[string]string{"postgres": `
SELECT e.ID AS id, e.event_type AS topic, convert_to(e.serialized_event, 'UTF8') AS payload,
       jsonb_build_object('listener', e.listener_id) AS headers
FROM {events} e`},
	},
	// The bus outbox of MassTransit's Entity Framework integration. Rows of a consumer's outbox are its inbox's to send. Its own delivery service
	// deletes what it has sent, too. https://masstransit.io/documentation/configuration/middleware/outbox
	"masstransit": {
		id: "SequenceNumber", createdAt: "SentTime", where: map[string]string{"postgres": `"OutboxId" IS NOT NULL AND ("EnqueueTime" IS NULL OR "EnqueueTime" <= now())`},
		project: map[string]string{"postgres": `
SELECT e.ID AS id, coalesce(nullif(regexp_replace(split_part(e."DestinationAddress", '?', 1), '^.*/', ''), ''), 'masstransit') AS topic,
       e."ConversationId"::text AS key, convert_to(e."Body", 'UTF8') AS payload,
       jsonb_strip_nulls(jsonb_build_object('Content-Type', e."ContentType", 'MessageId', e."MessageId"::text, 'CorrelationId', e."CorrelationId"::text)) AS headers
FROM {events} e`},
	},
	// The package @fullstackhouse/nestjs-outbox, which deletes what it has sent; status is pending or dlq. Times are in milliseconds.
	// https://github.com/fullstackhouse/nestjs-outbox
	"nestjs-outbox": {
		id: "id", where: map[string]string{"postgres": "status = 'pending'"},
		project: map[string]string{"postgres": `
SELECT e.ID AS id, e.event_name AS topic, e.event_payload AS payload, to_timestamp(e.inserted_at / 1000.0) AS created_at
FROM {events} e`},
	},
	// The package django-outbox-pattern: 1 is SCHEDULE, 2 is SUCCEEDED. https://github.com/juntossomosmais/django-outbox-pattern
	"django-outbox-pattern": {
		id: "id", createdAt: "added", where: map[string]string{"postgres": "status = 1"}, mark: map[string]string{"status": "2"},
		project: map[string]string{"postgres": `
SELECT e.ID AS id, e.destination AS topic, e.body AS payload,
       (SELECT jsonb_object_agg(h.key, h.value) FROM jsonb_each_text(e.headers) h WHERE h.value IS NOT NULL) AS headers
FROM {events} e`},
	},
	// Symfony Messenger's Doctrine transport. A body is JSON or serialized by PHP. The queue failed has what its handlers refused. Delays are
	// in UTC. https://symfony.com/doc/current/messenger.html#doctrine-transport
	"symfony": {id: "id", where: map[string]string{
		"postgres": "queue_name <> 'failed' AND available_at <= now() AT TIME ZONE 'UTC'",
		"sqlite":   "queue_name <> 'failed'",
	}, project: map[string]string{
		"postgres": `
SELECT e.ID AS id, e.queue_name AS topic, convert_to(e.body, 'UTF8') AS payload,
       CASE WHEN e.headers LIKE '{%' THEN e.headers::jsonb END AS headers
FROM {events} e`,
		"sqlite": `
SELECT e.ID AS id, e.queue_name AS topic, CAST(e.body AS BLOB) AS payload,
       CASE WHEN e.headers LIKE '{%' THEN e.headers END AS headers
FROM {events} e`,
	}},
	// Watermill's Forwarder, which writes envelopes to a table of its SQL Pub/Sub for a daemon to forward.
	// https://watermill.io/advanced/forwarder/
	"watermill": {id: "offset", project: map[string]string{"postgres": `
SELECT e.ID AS id, e.payload->>'destination_topic' AS topic,
       coalesce(decode(e.payload->>'payload', 'base64'), '') AS payload,
       CASE WHEN json_typeof(e.payload->'metadata') = 'object' THEN (e.payload->'metadata')::jsonb ELSE '{}' END
         || jsonb_build_object('_watermill_message_uuid', e.payload->>'uuid') AS headers
FROM {events} e`}},
}

// PresetMarks reports whether a preset marks the rows that were delivered. Otherwise they are deleted.
func PresetMarks(name string) bool { return presets[name].mark != nil }

func presetNames() []string { return slices.Sorted(maps.Keys(presets)) }

// presetName is the name of a preset. It also sets an unknown name, so that the other keys are checked as those of
// a custom table.
func presetName(into *string) scalar {
	s := choice(into, presetNames()...)
	known := s.set
	s.set = func(in input) error {
		err := known(in)
		if *into = in.text; err == nil {
			return nil
		}
		if near := nearest(in.text, presetNames()); near != "" {
			return invalid("did you mean " + near + "?")
		}
		return err
	}
	return s
}

// customTable returns the preset for a driver and a primary key, "" for the usual one. It reports false if the
// preset does not exist for the driver.
func (p preset) customTable(driver, id string) (buffer.CustomTable, bool) {
	id = cmp.Or(id, p.id)
	project, known := p.project[driver]
	return buffer.CustomTable{ID: id, CreatedAt: p.createdAt, Where: p.where[driver], Mark: maps.Clone(p.mark), Project: strings.ReplaceAll(project, "e.ID", "e."+buffer.QuoteName(id))}, known
}
