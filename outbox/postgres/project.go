package postgres

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox"
)

// A projection is a statement of the user's. It is run when the claim is committed, so
// that nothing waits for it, with one snapshot for all of the batch, and it can write
// nothing. Its session says the same of a time wherever the relay runs.
//
// Whatever is wrong with it is the batch's to bear (outbox.Batch.ProjectErr): it stays
// leased, and the worker lets it wait, or halves it until the event that is to blame
// stands alone. That the database goes away meanwhile is no fault of the batch: whoever
// claimed it hears so, and its lease brings it back.
type projection struct {
	// The events, by their ids once they are sorted, and their bytes.
	decoder
	table   *table
	own     *own
	groupID uuid.UUID
	// The ids of events that the projection names by another key.
	uuids map[uuid.UUID]int64
	names map[string]int64

	// began: what stood before it is committed.
	began   bool
	columns [len(projectable)]int // where they are among the columns; -1: not there
	payload payloadKind
	err     error
}

// projectable are the columns that mean something, by what they are below.
var projectable = [...]string{"id", "payload", "topic", "key", "headers", "created_at"}

const (
	columnID = iota
	columnPayload
	columnTopic
	columnKey
	columnHeaders
	columnCreatedAt
)

// payloadKind is how the projection returns a payload.
type payloadKind uint8

const (
	payloadJSON payloadKind = iota // the type vouches for it
	payloadText                    // JSON, and that is to be seen
	payloadBytes
)

func newProjection(t *table, groupID uuid.UUID) *projection {
	return &projection{table: t, own: t.own, groupID: groupID, names: map[string]int64{}}
}

// projecting are the steps of the projection, in a transaction of its own.
func (b *Buffer) projecting(p *projection) []step {
	begin := p.table.writing(b.patience, "TimeZone", "UTC", "DateStyle", "ISO, YMD", "bytea_output", "hex")
	begin.row = func([][]byte) error {
		p.begin()
		return nil
	}
	return []step{
		{sql: "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"},
		begin,
		{sql: p.own.project, args: []string{p.groupID.String()}, foreign: p.fields, row: p.projected},
		{sql: "COMMIT"},
	}
}

// begin is when what stood before is done.
func (p *projection) begin() {
	p.began = true
	p.sort()
}

// project runs steps that end with the projection's.
func (b *Buffer) project(ctx context.Context, p *projection, steps []step) error {
	for n := 0; ; n++ {
		err := b.roundTrip(ctx, steps)
		switch {
		case err == nil:
		case p.began && ctx.Err() == nil && isForeign(err):
			p.fail("%s: run source.project with a group_id of table %s to see it", err, p.table.events)
		case p.began || n == reruns || !slices.Contains([]string{codeDeadlock, codeSerialization}, code(err)):
			return err
		default: // all of it was rolled back
			continue
		}
		break
	}
	p.end()
	return nil
}

// end is when all rows were read: some events may have none.
func (p *projection) end() {
	for i := range p.events {
		e := &p.events[i]
		if p.err != nil {
			*e = outbox.Event{ID: e.ID, UUID: e.UUID, Topic: p.own.topic, CreatedAt: e.CreatedAt}
			continue
		}
		e.Unprojected = e.Payload == nil
	}
}

// fail keeps the first thing that is wrong, in one line.
func (p *projection) fail(format string, a ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("%s", strings.Join(strings.Fields(fmt.Sprintf(format, a...)), " "))
	}
}

const (
	oidVarchar = 1043
	oidBpchar  = 1042
	oidName    = 19
	oidUnknown = 705
)

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
	case oidJSONB, oidJSON:
		p.payload = payloadJSON
	case oidText, oidVarchar, oidBpchar, oidName, oidUnknown:
		p.payload = payloadText
	case oidBytea:
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
		p.fail("the projection returns event %s twice, and one row an event was expected: look at the joins in source.project", name)
		return nil
	}
	if topic := column(columnTopic); topic != nil {
		e.Topic = p.topic(topic)
		if e.Topic == "" {
			p.fail("the projection's topic of event %s is empty, a name was expected: say nullif(..., '') AS topic in source.project for the table's name", name)
		}
	}
	if key := column(columnKey); key != nil {
		text := string(key)
		e.Key = &text
	}
	if headers := column(columnHeaders); headers != nil {
		if !isObject(headers) {
			p.fail("the projection's headers of event %s are no JSON object, one of strings was expected: say jsonb_build_object(...) AS headers in source.project", name)
		}
		e.Headers = p.bytes(headers)
	}
	if created := column(columnCreatedAt); created != nil {
		p.created(e, name, created)
	}
	p.content(e, name, column(columnPayload))
	return nil
}

// content takes a payload.
func (p *projection) content(e *outbox.Event, name, payload []byte) {
	if payload == nil {
		p.fail("the projection's payload of event %s is NULL, and one was expected: leave its row out, so that the event is buried as not projected, or say coalesce(..., '{}') AS payload in source.project", name)
		return
	}
	switch p.payload {
	case payloadText:
		if !json.Valid(payload) {
			p.fail("the projection's payload of event %s is a text that is no JSON: say to_jsonb(...) AS payload, or convert_to(..., 'UTF8') for bytes, in source.project", name)
			return
		}
	case payloadBytes:
		decoded := make([]byte, hex.DecodedLen(len(payload)-len(`\x`)))
		if _, err := hex.Decode(decoded, payload[len(`\x`):]); err != nil {
			p.fail("the projection's payload of event %s cannot be read: %s", name, err)
			return
		}
		e.Payload = decoded
		return
	case payloadJSON:
	}
	e.Payload = p.bytes(payload)
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
	return eventOf(p.events, id)
}

// created takes when an event was made. What is infinite says nothing.
func (p *projection) created(e *outbox.Event, name, text []byte) {
	if bytes.HasSuffix(text, []byte("infinity")) {
		return
	}
	for _, layout := range []string{"2006-01-02 15:04:05.999999Z07:00", "2006-01-02 15:04:05.999999Z07", "2006-01-02 15:04:05.999999"} {
		if at, err := time.Parse(layout, string(text)); err == nil {
			e.CreatedAt = at.UTC()
			return
		}
	}
	p.fail("the projection's created_at of event %s is %q, a timestamptz was expected: say ...::timestamptz AS created_at in source.project", name, text)
}

func isObject(text []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{")) && fitsJSONB(text)
}

// isForeign tells what the database has against a projection from what ails itself: a
// connection that is lost, a server that stops or is full.
func isForeign(err error) bool {
	c := code(err)
	for _, class := range []string{"08", "53", "57P", "58", "XX"} {
		if strings.HasPrefix(c, class) {
			return false
		}
	}
	return c != ""
}
