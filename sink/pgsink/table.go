package pgsink

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Schema is the statement that creates an inbox of that name, "table" or "schema.table", quoted where SQL needs it.
func Schema(table string) string { return strings.ReplaceAll(schema, "INBOX", table) }

const schema = `CREATE TABLE INBOX (
    id           text PRIMARY KEY,                       -- the same whenever an event is sent again, and never that of another event
    seq          bigint GENERATED ALWAYS AS IDENTITY,    -- the order of arrival
    event_id     text NOT NULL,                          -- the event's id in its outbox: a number or a uuid
    topic        text NOT NULL,
    key          text,
    payload      json NOT NULL,                          -- or jsonb, text or bytea
    headers      json,                                   -- or jsonb
    created_at   timestamptz NOT NULL,                   -- when the event was inserted into its outbox
    received_at  timestamptz NOT NULL DEFAULT now(),
    processed_at timestamptz                             -- set by the consumer
);
CREATE INDEX ON INBOX (seq) WHERE processed_at IS NULL;
CREATE INDEX ON INBOX (processed_at) WHERE processed_at IS NOT NULL;
`

// column is a column that the sink fills, and the types that it may have.
type column struct {
	name     string
	types    []string
	optional bool
}

var columns = []column{
	{name: "id", types: []string{"text", "character varying"}},
	{name: "event_id", types: []string{"text", "character varying"}},
	{name: "topic", types: []string{"text", "character varying"}},
	{name: "key", types: []string{"text", "character varying"}},
	{name: "payload", types: []string{"json", "jsonb", "text", "bytea"}},
	{name: "headers", types: []string{"json", "jsonb"}},
	{name: "created_at", types: []string{"timestamp with time zone"}},
	{name: "dead_letter", types: []string{"json", "text"}, optional: true},
}

// layout is what the sink has to know of the table.
type layout struct {
	name  string            // quoted, with the schema
	types map[string]string // by column
	sql   string
	// durable is what doctor wants to know.
	unlogged, fsyncOff, standbys bool
}

func (t *layout) has(column string) bool { return t.types[column] != "" }

// lookUpSQL returns one row for each column of the table, or none if there is no table. $1 is its name.
const lookUpSQL = `
SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), c.relkind, c.relpersistence,
       a.attname, pg_catalog.format_type(a.atttypid, NULL),
       EXISTS (SELECT FROM pg_catalog.pg_index i
               WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
                 AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts OPERATOR(pg_catalog.=) 1::smallint
                 AND i.indkey[0] OPERATOR(pg_catalog.=) a.attnum),
       pg_catalog.has_column_privilege(c.oid, a.attnum, 'INSERT'),
       pg_catalog.has_column_privilege(c.oid, a.attnum, 'SELECT'),
       pg_catalog.current_setting('transaction_read_only'),
       pg_catalog.current_setting('fsync'),
       pg_catalog.current_setting('synchronous_standby_names')
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0::smallint AND NOT a.attisdropped
WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass($1)
ORDER BY a.attnum`

// lookUp reads the table's layout and keeps it. Its error is an outage: the events wait until the table fits.
func (s *Sink) lookUp(ctx context.Context, conn *pgconn.PgConn) (*layout, error) {
	result := conn.ExecParams(ctx, lookUpSQL, [][]byte{[]byte(quoteTable(s.table))}, nil, nil, nil).Read()
	if result.Err != nil {
		return nil, result.Err
	}
	if len(result.Rows) == 0 {
		return nil, wrongTable("there is no table %s; create it with: relay schema --inbox %s", s.table, s.table)
	}
	t := &layout{types: map[string]string{}}
	unique, insert, selectID := false, true, true
	for _, row := range result.Rows {
		text := func(i int) string { return string(row[i]) }
		t.name, t.unlogged = text(0), text(2) == "u"
		if kind := text(1); kind != "r" && kind != "p" {
			return nil, wrongTable("%s is not a table; expected a table, as relay schema --inbox %s prints it", t.name, s.table)
		}
		if text(8) == "on" {
			return nil, &readOnlyError{}
		}
		t.fsyncOff, t.standbys = text(9) == "off", text(10) != ""
		name := text(3)
		t.types[name] = strings.Trim(text(4), `"`) // quote_all_identifiers
		if name == "id" {
			unique, selectID = text(5) == "t", text(7) == "t"
		}
		if slices.ContainsFunc(columns, func(c column) bool { return c.name == name }) && text(6) != "t" {
			insert = false
		}
	}
	for _, c := range columns {
		switch is := t.types[c.name]; {
		case is == "" && c.optional:
		case is == "":
			return nil, wrongTable("table %s has no column %s; expected the columns that relay schema --inbox %s prints", t.name, c.name, s.table)
		case !slices.Contains(c.types, is):
			return nil, wrongTable("column %s of table %s is %s; expected %s", c.name, t.name, is, strings.Join(c.types, " or "))
		}
	}
	switch {
	case !unique:
		return nil, wrongTable("column id of table %s is not unique, so an event that is sent again would be there twice; run: ALTER TABLE %s ADD PRIMARY KEY (id)", t.name, t.name)
	case !insert:
		return nil, noPrivilege("the role may not insert into table %s; run: GRANT INSERT, SELECT (id) ON %s TO the role in url", t.name, t.name)
	case !selectID:
		return nil, noPrivilege("the role may not read column id of table %s, which ON CONFLICT needs; run: GRANT SELECT (id) ON %s TO the role in url", t.name, t.name)
	}
	t.sql = t.insertSQL()
	s.layout.Store(t)
	return t, nil
}

// quoteTable quotes the parts of a table's name.
func quoteTable(table string) string {
	schema, name, _ := buffer.SplitTable(table)
	if schema == "" {
		return buffer.QuoteName(name)
	}
	return buffer.QuoteName(schema) + "." + buffer.QuoteName(name)
}

// tableError is a table that does not fit.
type tableError struct{ text string }

func (e *tableError) Error() string { return e.text }

func wrongTable(format string, a ...any) error { return &tableError{fmt.Sprintf(format, a...)} }

func noPrivilege(format string, a ...any) error { return sink.Access(wrongTable(format, a...)) }

// readOnlyError is a server that takes no writes, such as a standby.
type readOnlyError struct{}

func (*readOnlyError) Error() string {
	return "the server is read-only (a standby, or the primary of before a failover); expected one that takes writes: with several hosts in url, add target_session_attrs=read-write"
}

// Warnings implements sink.Warner.
func (s *Sink) Warnings(ctx context.Context) (warnings []string) {
	t := s.inspect(ctx)
	if t == nil {
		return nil // Check says why
	}
	if t.unlogged {
		warnings = append(warnings, fmt.Sprintf("table %s is unlogged: a crash of the server empties it, and the outbox no longer has its events; run: ALTER TABLE %s SET LOGGED", t.name, t.name))
	}
	if t.fsyncOff {
		warnings = append(warnings, "fsync is off at "+s.server+": a crash of its machine loses events that were delivered, and may corrupt the database; set fsync = on")
	}
	return warnings
}

// Notes implements sink.Informer.
func (s *Sink) Notes(ctx context.Context) []string {
	if t := s.inspect(ctx); t != nil && !t.standbys {
		return []string{s.server + " replicates asynchronously or not at all (synchronous_standby_names is empty): a failover loses delivered events that the standby had not received"}
	}
	return nil
}

// inspect looks at the table; nil if that fails.
func (s *Sink) inspect(ctx context.Context) *layout {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil
	}
	defer conn.Release()
	t, err := s.lookUp(ctx, conn.Conn().PgConn())
	if err != nil {
		return nil
	}
	return t
}
