package custom

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// {events} stands for one of these SELECTs. The ledger row says where the rows of the batch are. They run with the search path of the
// projection, so they name the schema of all that they use.
const (
	rowsByIDSQL = `
SELECT e.* FROM custom_events e
WHERE e.custom_id OPERATOR(pg_catalog.>=) (SELECT first_id FROM outbox_batches WHERE group_id OPERATOR(pg_catalog.=) $1)
  AND e.custom_id OPERATOR(pg_catalog.<=) (SELECT last_id FROM outbox_batches WHERE group_id OPERATOR(pg_catalog.=) $1)
  AND e.group_id OPERATOR(pg_catalog.=) $1`

	rowsByUUIDSQL = `
SELECT e.* FROM custom_events e
WHERE e.custom_id OPERATOR(pg_catalog.=) ANY ((SELECT uuids FROM outbox_batches WHERE group_id OPERATOR(pg_catalog.=) $1)::pg_catalog.uuid[])
  AND e.group_id OPERATOR(pg_catalog.=) $1`

	// A batch of one of several sinks has some of the rows with its claim_id. Its own group_id is in relay.batch.
	rowsSharedSQL = `
SELECT e.* FROM custom_events e
WHERE e.custom_id OPERATOR(pg_catalog.>=) (SELECT first_id FROM outbox_batches WHERE group_id OPERATOR(pg_catalog.=) pg_catalog.current_setting('relay.batch')::pg_catalog.uuid)
  AND e.custom_id OPERATOR(pg_catalog.<=) (SELECT last_id FROM outbox_batches WHERE group_id OPERATOR(pg_catalog.=) pg_catalog.current_setting('relay.batch')::pg_catalog.uuid)
  AND e.group_id OPERATOR(pg_catalog.=) $1
  AND e.custom_id::bigint OPERATOR(pg_catalog.<@) (SELECT members FROM outbox_batches WHERE group_id OPERATOR(pg_catalog.=) pg_catalog.current_setting('relay.batch')::pg_catalog.uuid)`

	rowsSharedUUIDSQL = `
SELECT e.* FROM custom_events e
WHERE e.custom_id OPERATOR(pg_catalog.=) ANY ((SELECT uuids FROM outbox_batches WHERE group_id OPERATOR(pg_catalog.=) pg_catalog.current_setting('relay.batch')::pg_catalog.uuid)::pg_catalog.uuid[])
  AND e.group_id OPERATOR(pg_catalog.=) $1`

	// This one only describes them, before the relay's tables exist.
	rowsDescribedSQL = `
SELECT e.* FROM custom_events e WHERE e.group_id OPERATOR(pg_catalog.=) $1`
)

// checkProjection adds what is wrong with the projection, and returns the names of its columns. The server parses and plans it once nobody can have planted what that runs.
func checkProjection(ctx context.Context, db *pg.DB, t Facts, c Config, missing *catalog.Findings) (returned []string, err error) {
	rows := strings.ReplaceAll(rowsDescribedSQL, "custom_events", t.Table.Quoted)
	project, _ := projection.Expand(c.Project, rows)
	before := len(*missing)
	if err := checkPlanters(ctx, db, t, "source.project", c.Project, missing); err != nil || len(*missing) > before { // parsing it runs code
		return nil, err
	}
	d, err := describe(ctx, db, t.path(), project)
	if err != nil {
		return nil, cannotRead(c.Project, rows, err, t.Table.Role, missing)
	}
	if checkProjected(missing, d, t.Column(c.ID)); len(*missing) > before {
		return nil, nil
	}
	// Planning checks the privileges.
	plan, err := planOf(ctx, db, t.path(), project)
	if err != nil {
		return nil, cannotRead(c.Project, rows, err, t.Table.Role, missing)
	}
	switch {
	case plan.Has("ModifyTable"):
		missing.Add("source.project writes (INSERT, UPDATE, DELETE or MERGE), and is run where nothing can be written: the relay deletes events itself", "make it a SELECT")
	case plan.Has("LockRows"):
		missing.Add("source.project locks rows (FOR UPDATE or FOR SHARE), and is run where nothing can be locked", "leave that out")
	}
	return columnNames(d.columns), nil
}

// The parser runs the checks of domains, and the planner evaluates immutable functions and inlines those in SQL, so both run what the projection calls: they
// must write nothing, and leave nothing behind in the session.
var (
	beginReadOnly = pg.Step{SQL: "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY"}
	rollback      = pg.Step{SQL: "ROLLBACK"}
)

// planOf has the server plan a projection.
func planOf(ctx context.Context, db *pg.DB, path, project string) (*pg.Plan, error) {
	var answer []byte
	err := db.RoundTrip(ctx, []pg.Step{beginReadOnly, db.UserTx(db.StatementTimeout, path), {
		SQL: "EXPLAIN (FORMAT JSON) " + project, Args: []string{uuid.Nil.String()},
		UserSQL: true, Row: func(v [][]byte) error {
			answer = slices.Clone(v[0])
			return nil
		},
	}, rollback})
	if err != nil {
		return nil, err
	}
	return pg.ParsePlan(answer)
}

// cannotRead adds what the server has against a projection, if the error is about that.
func cannotRead(project, rows string, err error, role string, missing *catalog.Findings) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || !pg.IsStatementError(err) {
		return err
	}
	if pgErr.Code == pg.CodeNoPrivilege {
		missing.Add("role "+role+" may not read what source.project reads: "+pgErr.Message, "GRANT SELECT ON the table, or USAGE ON the SCHEMA, TO "+pg.Quote(role))
	} else {
		missing.Add(misread(project, rows, pgErr), "correct source.project")
	}
	return nil
}

// described is what the server reports about a projection.
type described struct {
	columns    []pgconn.FieldDescription
	types      []string // the names of the columns' types
	parameters int
}

// describe has the server parse the projection: once with a uuid as its parameter, and once without, to see whether it
// uses the parameter.
func describe(ctx context.Context, db *pg.DB, path, project string) (d described, err error) {
	ctx, cancel := context.WithTimeout(ctx, db.StatementTimeout)
	defer cancel()
	conn, release, err := db.Acquire(ctx)
	if err != nil {
		return d, err
	}
	defer release()
	pgConn := conn.Conn().PgConn()
	err = db.AsUser(ctx, pgConn, path, func() error {
		statement, err := pgConn.Prepare(ctx, "", project, []uint32{pg.OIDUUID})
		if err != nil {
			return err
		}
		d.columns, d.parameters = statement.Fields, len(statement.ParamOIDs)
		if statement, err = pgConn.Prepare(ctx, "", project, nil); err == nil {
			d.parameters = len(statement.ParamOIDs)
		} else if !pg.IsStatementError(err) {
			return err
		}
		return nil
	})
	if err != nil {
		return d, err
	}
	kinds := conn.Conn().TypeMap()
	for _, c := range d.columns {
		name := fmt.Sprintf("type %d", c.DataTypeOID)
		if kind, known := kinds.TypeForOID(c.DataTypeOID); known {
			name = kind.Name
		}
		d.types = append(d.types, name)
	}
	return d, nil
}

// misread returns what the server has against a projection, and where in it. rows is what {events} was expanded to.
func misread(project, rows string, err *pgconn.PgError) string {
	where := ""
	if err.Position > 0 {
		line, column := place(project, rows, int(err.Position))
		where = fmt.Sprintf(" at line %d, column %d", line, column)
	}
	return "source.project is not right" + where + ": " + withHint(err)
}

// place returns line and column of a position in the expanded projection. All three count characters from 1.
func place(project, rows string, position int) (line, column int) {
	line, column = 1, 1
	for at := 1; at < position && project != ""; {
		if rest, found := strings.CutPrefix(project, projection.Events); found {
			if at += len("()") + utf8.RuneCountInString(rows); at <= position {
				project, column = rest, column+len(projection.Events)
			}
			continue
		}
		c, size := utf8.DecodeRuneInString(project)
		if at, project, column = at+1, project[size:], column+1; c == '\n' {
			line, column = line+1, 1
		}
	}
	return line, column
}

// acceptedTypes are the types of the columns that a projection may return; nil if the text of every type
// will do. expectedTypes describes them.
var (
	acceptedTypes = [len(projection.Names)][]uint32{
		projection.Payload:   {pg.OIDJSONB, pg.OIDJSON, pg.OIDBytea, pg.OIDText, pg.OIDVarchar, pg.OIDBpchar, pg.OIDName, pg.OIDUnknown},
		projection.Headers:   {pg.OIDJSONB, pg.OIDJSON, pg.OIDText, pg.OIDVarchar, pg.OIDUnknown},
		projection.CreatedAt: {pg.OIDTimestamp, pg.OIDTimestamptz},
	}
	expectedTypes = [len(projection.Names)]string{
		projection.Payload: "jsonb, json, bytea, or text that is JSON", projection.Headers: "json or jsonb", projection.CreatedAt: "timestamptz",
	}
)

// checkProjected adds what is wrong with the columns and parameters of the projection.
func checkProjected(f *catalog.Findings, d described, key Column) {
	const fix = "correct source.project, which returns a row an event with columns id and payload, and perhaps topic, key, headers and created_at"
	switch {
	case len(d.columns) == 0:
		f.Add("source.project returns nothing; expected a SELECT", fix)
		return
	case d.parameters == 0:
		f.Add("source.project uses neither "+projection.Events+" nor $1, its parameter, so every batch would get every event", "write FROM "+projection.Events+" e in source.project")
	case d.parameters > 1:
		f.Add(fmt.Sprintf("source.project has %d parameters; expected only $1, the batch's group_id", d.parameters), "write FROM "+projection.Events+" e in source.project")
	}
	columns, err := projection.Find(columnNames(d.columns), projection.SameName)
	if err != nil {
		f.Add(err.Error(), fix)
	}
	for column, at := range columns {
		switch {
		case at < 0:
		case column == projection.ID && !sameKind(d.columns[at].DataTypeOID, key):
			f.Add(fmt.Sprintf("source.project returns column id of type %s; the key %s is %s", d.types[at], key.Quoted, key.Type), "return "+key.Quoted+" AS id")
		case acceptedTypes[column] != nil && !slices.Contains(acceptedTypes[column], d.columns[at].DataTypeOID):
			f.Add(fmt.Sprintf("source.project returns column %s of type %s; expected %s", projection.Names[column], d.types[at], expectedTypes[column]), fix)
		}
	}
}

func columnNames(columns []pgconn.FieldDescription) []string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	return names
}

// sameKind reports whether values of a type, or their texts, are a key's.
func sameKind(oid uint32, key Column) bool {
	switch oid {
	case pg.OIDText, pg.OIDVarchar:
		return true
	case pg.OIDInt8, pg.OIDInt4, pg.OIDInt2:
		return key.IsInteger()
	}
	return oid == key.OID
}
