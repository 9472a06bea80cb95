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
	// project is the projection by driver; e.ID stands for the primary key.
	project map[string]string
}

// presets are the outbox tables of other projects, whose rows can be deleted after delivery. Event stores have no preset,
// because their rows must stay.
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
	// Symfony Messenger's Doctrine transport. A body is JSON or serialized by PHP.
	// https://symfony.com/doc/current/messenger.html#doctrine-transport
	"symfony": {id: "id", project: map[string]string{
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
	return buffer.CustomTable{ID: id, Project: strings.ReplaceAll(project, "e.ID", "e."+buffer.QuoteName(id))}, known
}
