package pgsink

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// rows are the events of a batch by column. They are what their table can hold, as far as that can be known.
type rows struct {
	id, eventID, topic []string
	key                []*string
	payload            []string // of text; nil if the column is bytea
	bytes              [][]byte
	headers            []*string
	createdAt          []time.Time
	deadLetter         []*string
	dead               bool // there is a dead letter
}

func (r *rows) len() int { return len(r.id) }

// rows returns the rows of the batch, and the events that the table cannot hold.
func (t *layout) rows(b *buffer.Batch) (*rows, []sink.EventError) {
	n := len(b.Events)
	r := &rows{
		id: make([]string, 0, n), eventID: make([]string, 0, n), topic: make([]string, 0, n), key: make([]*string, 0, n),
		headers: make([]*string, 0, n), createdAt: make([]time.Time, 0, n), deadLetter: make([]*string, 0, n),
	}
	var rejected []sink.EventError
	kind := t.types["payload"]
	for i := range b.Events {
		e := &b.Events[i]
		err := sink.CheckHeaders(e)
		if isJSON := kind == "json" || kind == "jsonb"; err == nil && isJSON && !sink.IsJSON(e, b.PayloadIsJSON) {
			err = sink.Permanent(fmt.Errorf("the payload is not JSON, and column payload of table %s is %s; expected JSON, or a column of type bytea", t.name, kind))
		}
		if err != nil {
			rejected = append(rejected, sink.EventError{Index: i, Err: err})
			continue
		}
		r.id = append(r.id, string(sink.AppendDedupeID(nil, b, i)))
		r.eventID = append(r.eventID, e.Identity())
		r.topic = append(r.topic, e.Topic)
		r.key = append(r.key, e.Key)
		if kind == "bytea" {
			r.bytes = append(r.bytes, notNil(e.Payload))
		} else {
			r.payload = append(r.payload, string(e.Payload))
		}
		var headers, reason *string
		if e.Headers != nil {
			headers = new(string(e.Headers))
		}
		if d := b.DeadLetter(i); d != nil {
			reason, r.dead = new(string(sink.AppendDeadLetter(nil, d))), true
		}
		r.headers, r.createdAt, r.deadLetter = append(r.headers, headers), append(r.createdAt, e.CreatedAt), append(r.deadLetter, reason)
	}
	return r, rejected
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// insertSQL is the statement that inserts a batch: one array for each column. Everything is named with its schema, because a role that
// may create objects in a schema of the role's search_path could otherwise have the relay run them. Triggers of the table run with
// the session's own search_path.
func (t *layout) insertSQL() string {
	names, values := []string{"id", "event_id", "topic", "key", "payload", "headers", "created_at"}, []string{"e.id", "e.event_id", "e.topic", "e.key"}
	payload := "pg_catalog.text[]"
	if t.types["payload"] == "bytea" {
		payload = "pg_catalog.bytea[]"
	}
	values = append(values, cast("e.payload", t.types["payload"]), cast("e.headers", t.types["headers"]), "e.created_at")
	if t.has("dead_letter") {
		names, values = append(names, "dead_letter"), append(values, cast("e.dead_letter", t.types["dead_letter"]))
	}
	return "INSERT INTO " + t.name + " (" + strings.Join(names, ", ") + ")\nSELECT " + strings.Join(values, ", ") + `
FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[]), pg_catalog.unnest($3::pg_catalog.text[]),
                pg_catalog.unnest($4::pg_catalog.text[]), pg_catalog.unnest($5::` + payload + `), pg_catalog.unnest($6::pg_catalog.text[]),
                pg_catalog.unnest($7::pg_catalog.timestamptz[]), pg_catalog.unnest($8::pg_catalog.text[]))
     AS e (id, event_id, topic, key, payload, headers, created_at, dead_letter)
ON CONFLICT (id) DO NOTHING`
}

// cast converts text to JSON where the column is.
func cast(value, kind string) string {
	if kind == "json" || kind == "jsonb" {
		return value + "::pg_catalog." + kind
	}
	return value
}

// settingsSQL holds for the transaction: an answer means that the rows are on disk, also where the database or the role has
// synchronous_commit = off, and the server ends the statement when the relay no longer waits for it ($1, in milliseconds).
const settingsSQL = `SELECT pg_catalog.set_config('statement_timeout', $1, true),
       pg_catalog.set_config('synchronous_commit', CASE
           WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off' THEN 'on'
           WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'local' THEN 'on'
           ELSE pg_catalog.current_setting('synchronous_commit') END, true)`

// insert inserts the rows in one round trip: without BEGIN, the statements up to the one Sync are one transaction.
func (t *layout) insert(ctx context.Context, conn *pgx.Conn, r *rows) error {
	payload, payloadOID := any(r.payload), uint32(pgtype.TextArrayOID)
	if r.bytes != nil {
		payload, payloadOID = r.bytes, pgtype.ByteaArrayOID
	}
	oids := []uint32{
		pgtype.TextArrayOID, pgtype.TextArrayOID, pgtype.TextArrayOID, pgtype.TextArrayOID, payloadOID,
		pgtype.TextArrayOID, pgtype.TimestamptzArrayOID, pgtype.TextArrayOID,
	}
	values := make([][]byte, len(oids))
	for i, column := range []any{r.id, r.eventID, r.topic, r.key, payload, r.headers, r.createdAt, r.deadLetter} {
		var err error
		if values[i], err = conn.TypeMap().Encode(oids[i], pgtype.BinaryFormatCode, column, nil); err != nil {
			return sink.Permanent(err)
		}
	}
	timeout := "0"
	if deadline, ok := ctx.Deadline(); ok {
		timeout = fmt.Sprint(max(time.Until(deadline).Milliseconds(), 1))
	}
	var batch pgconn.Batch
	batch.ExecParams(settingsSQL, [][]byte{[]byte(timeout)}, nil, nil, nil)
	batch.ExecParams(t.sql, values, oids, []int16{1, 1, 1, 1, 1, 1, 1, 1}, nil)
	_, err := conn.PgConn().ExecBatch(ctx, &batch).ReadAll()
	return err
}
