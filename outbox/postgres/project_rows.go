package postgres

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// What is wrong with the columns is the projection's, and with a row that names an event of
// the batch, that event's: the others need not wait for it.

// fields finds the columns.
func (p *projection) fields(all []pgconn.FieldDescription) {
	for i := range p.columns {
		p.columns[i] = -1
	}
	for i, f := range all {
		at := slices.Index(projectable[:], f.Name)
		switch {
		case at < 0: // whatever else it returns is its own business
		case p.columns[at] >= 0:
			p.fail("the projection returns a column %s twice, and one was expected: name its columns one by one in source.project", f.Name)
		default:
			p.columns[at] = i
		}
	}
	for _, required := range []int{columnID, columnPayload} {
		if name := projectable[required]; p.columns[required] < 0 {
			p.fail("the projection returns no column %s, and id and payload were expected: say ... AS %s in source.project", name, name)
			return
		}
	}
	switch payload := all[p.columns[columnPayload]].DataTypeOID; payload {
	case pg.OIDJSONB, pg.OIDJSON:
		p.payload = payloadJSON
	case pg.OIDText, pg.OIDVarchar, pg.OIDBpchar, pg.OIDName, pg.OIDUnknown:
		p.payload = payloadText
	case pg.OIDBytea:
		p.payload = payloadBytes
	default:
		p.fail("the projection's column payload is neither jsonb, json, text nor bytea: say to_jsonb(...) AS payload in source.project")
	}
}

// projected takes a row of the projection.
func (p *projection) projected(v [][]byte) error {
	if p.err != nil {
		return nil
	}
	column := func(at int) []byte {
		if p.columns[at] < 0 {
			return nil
		}
		return v[p.columns[at]]
	}
	name := column(columnID)
	if name == nil {
		p.fail("the projection returns a row whose id is NULL, and the event's primary key was expected: look at the joins in source.project")
		return nil
	}
	e := p.event(name)
	switch {
	case e == nil:
		p.fail("the projection returns event %q, which is not in the batch: its id must be column %s of table %s, and WHERE group_id = $1 must be in source.project",
			name, p.own.key.quoted, p.table.events)
		return nil
	case e.Payload != nil:
		refuse(e, "the projection returns event %s twice, and one row an event was expected: look at the joins in source.project", name)
		return nil
	}
	if topic := column(columnTopic); topic != nil {
		e.Topic = p.Topic(topic)
		if e.Topic == "" {
			refuse(e, "the projection's topic of event %s is empty, a name was expected: say nullif(..., '') AS topic in source.project for the table's name", name)
		}
	}
	if key := column(columnKey); key != nil {
		text := string(key)
		e.Key = &text
	}
	if headers := column(columnHeaders); headers != nil {
		if !isObject(headers) {
			refuse(e, "the projection's headers of event %s are no JSON object, one of strings was expected: say jsonb_build_object(...) AS headers in source.project", name)
		}
		e.Headers = p.Copy(headers)
	}
	if created := column(columnCreatedAt); created != nil {
		insertedAt(e, name, created)
	}
	p.content(e, name, column(columnPayload))
	return nil
}

// content takes a payload.
func (p *projection) content(e *outbox.Event, name, payload []byte) {
	if payload == nil {
		refuse(e, "the projection's payload of event %s is NULL, and one was expected: leave its row out, so that the event is buried as not projected, or say coalesce(..., '{}') AS payload in source.project", name)
		return
	}
	switch p.payload {
	case payloadText:
		if !json.Valid(payload) {
			refuse(e, "the projection's payload of event %s is a text that is no JSON: say to_jsonb(...) AS payload, or convert_to(..., 'UTF8') for bytes, in source.project", name)
			return
		}
	case payloadBytes:
		decoded := make([]byte, hex.DecodedLen(len(payload)-len(`\x`)))
		if _, err := hex.Decode(decoded, payload[len(`\x`):]); err != nil {
			refuse(e, "the projection's payload of event %s cannot be read: %s", name, err)
			return
		}
		e.Payload = decoded
		return
	case payloadJSON:
	}
	e.Payload = p.Copy(payload)
}

// event is the one that the projection names; nil: there is none in the batch.
func (p *projection) event(name []byte) *outbox.Event {
	var (
		id    int64
		known bool
	)
	switch {
	case p.uuids != nil:
		if key, err := uuid.ParseBytes(name); err == nil {
			id, known = p.uuids[key]
		}
	case len(p.names) > 0:
		id, known = p.names[string(name)]
	default:
		var err error
		id, err = strconv.ParseInt(string(name), 10, 64)
		known = err == nil
	}
	if !known {
		return nil
	}
	return eventOf(p.Events, id)
}

// insertedAt takes when an event was made. What is infinite says nothing.
func insertedAt(e *outbox.Event, name, text []byte) {
	if bytes.HasSuffix(text, []byte("infinity")) {
		return
	}
	for _, layout := range []string{"2006-01-02 15:04:05.999999Z07:00", "2006-01-02 15:04:05.999999Z07", "2006-01-02 15:04:05.999999"} {
		if at, err := time.Parse(layout, string(text)); err == nil {
			e.CreatedAt = at.UTC()
			return
		}
	}
	refuse(e, "the projection's created_at of event %s is %q, a timestamptz was expected: say ...::timestamptz AS created_at in source.project", name, text)
}

func isObject(text []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{")) && fitsJSON(text)
}
