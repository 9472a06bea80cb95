package config

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// preset is a table whose shape is known: how events are found in one of that name.
type preset struct {
	// id is the primary key.
	id string
	// project is by driver, with TABLE for the table's name and e.ID for its key's.
	project map[string]string
}

// presets are tables that a project makes to hold what is to be sent, and whose rows
// nobody needs any more when they are. None of an event store: those rows are to stay.
var presets = map[string]preset{
	// Debezium's outbox event router, as it works without settings; it has a header of
	// the type where table.fields.additional.placement says so.
	// https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html
	"debezium": {id: "id", project: map[string]string{"postgres": `
SELECT e.ID AS id, 'outbox.event.' || e.aggregatetype AS topic, e.aggregateid AS key,
       coalesce(e.payload, 'null') AS payload,
       jsonb_strip_nulls(jsonb_build_object('id', e.ID, 'eventType', e.type)) AS headers
FROM TABLE e WHERE e.group_id = $1`}},
	// The active_outbox gem, which writes events and leaves it to others to send them.
	// https://github.com/rootstrap/active_outbox
	"rails": {id: "id", project: map[string]string{
		"postgres": `
SELECT e.ID AS id, e.event AS topic, e.aggregate_identifier::text AS key,
       coalesce(e.payload, 'null') AS payload,
       jsonb_build_object('identifier', e.identifier, 'aggregate', e.aggregate) AS headers
FROM TABLE e WHERE e.group_id = $1`,
		"sqlite": `
SELECT e.ID AS id, e.event AS topic, CAST(e.aggregate_identifier AS TEXT) AS key,
       coalesce(e.payload, 'null') AS payload,
       json_object('identifier', e.identifier, 'aggregate', e.aggregate) AS headers
FROM {events} e`,
	}},
	// Symfony Messenger's Doctrine transport. A body is JSON or what PHP serializes.
	// https://symfony.com/doc/current/messenger.html#doctrine-transport
	"symfony": {id: "id", project: map[string]string{
		"postgres": `
SELECT e.ID AS id, e.queue_name AS topic, convert_to(e.body, 'UTF8') AS payload,
       CASE WHEN e.headers LIKE '{%' THEN e.headers::jsonb END AS headers
FROM TABLE e WHERE e.group_id = $1`,
		"sqlite": `
SELECT e.ID AS id, e.queue_name AS topic, CAST(e.body AS BLOB) AS payload,
       CASE WHEN e.headers LIKE '{%' THEN e.headers END AS headers
FROM {events} e`,
	}},
	// Watermill's Forwarder, which publishes to a table of its SQL Pub/Sub and leaves it
	// to a daemon to send on what the envelopes there hold.
	// https://watermill.io/advanced/forwarder/
	"watermill": {id: "offset", project: map[string]string{"postgres": `
SELECT e.ID AS id, e.payload->>'destination_topic' AS topic,
       coalesce(decode(e.payload->>'payload', 'base64'), '') AS payload,
       CASE WHEN json_typeof(e.payload->'metadata') = 'object' THEN (e.payload->'metadata')::jsonb ELSE '{}' END
         || jsonb_build_object('_watermill_message_uuid', e.payload->>'uuid') AS headers
FROM TABLE e WHERE e.group_id = $1`}},
}

func presetNames() []string { return slices.Sorted(maps.Keys(presets)) }

// presetName is one of them. One that is not known is kept: the table is the user's own
// all the same, and what else is wrong with it is said beside.
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

// own is the preset for a table, whose key may be another; false: not with that driver.
func (p preset) own(driver, table, id string) (buffer.CustomTable, bool) {
	project, known := p.project[driver]
	name := buffer.QuoteName(table)
	if schema, plain, _ := buffer.SplitTable(table); driver != "sqlite" {
		if name = buffer.QuoteName(plain); schema != "" {
			name = buffer.QuoteName(schema) + "." + name
		}
	}
	id = cmp.Or(id, p.id)
	fill := strings.NewReplacer("FROM TABLE e", "FROM "+name+" e", "e.ID", "e."+buffer.QuoteName(id))
	return buffer.CustomTable{ID: id, Project: fill.Replace(project)}, known
}
