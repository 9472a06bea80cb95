package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

// checkProjection has the server read the projection, which runs nothing: whether it is
// SQL, and what it returns.
func (b *Buffer) checkProjection(ctx context.Context, t ownFacts, missing *catalog.Findings) error {
	d, err := b.describe(ctx)
	if err != nil {
		return b.refusedToRead(ctx, err, t.table.Role, missing)
	}
	before := len(*missing)
	if checkProjected(missing, d, t.column(b.config.Own.ID)); len(*missing) > before {
		return nil
	}
	// What it reads is looked at when it is planned; nothing of it is run.
	plan, err := b.planOf(ctx, b.config.Own.Project, uuid.Nil)
	if err != nil {
		return b.refusedToRead(ctx, err, t.table.Role, missing)
	}
	switch {
	case plan.has("ModifyTable"):
		missing.Add("source.project writes (INSERT, UPDATE, DELETE or MERGE), and is run where nothing can be written: the relay deletes events itself", "make it a SELECT")
	case plan.has("LockRows"):
		missing.Add("source.project locks rows (FOR UPDATE or FOR SHARE), and is run where nothing can be locked", "leave that out")
	}
	return nil
}

// refusedToRead tells what the server has against a projection, where the error says that.
func (b *Buffer) refusedToRead(ctx context.Context, err error, role string, missing *catalog.Findings) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || !pg.IsStatementError(err) {
		return err
	}
	if pgErr.Code != pg.CodeNoPrivilege {
		missing.Add(misread(b.config.Own.Project, pgErr), "correct source.project")
		return nil
	}
	mend, err := b.readable(ctx, pgErr.Message, role)
	missing.Add("role "+role+" may not read what source.project reads: "+pgErr.Message, mend)
	return err
}

// described is what a projection is, for the server.
type described struct {
	columns []pgconn.FieldDescription
	// types are the names of the columns' types.
	types []string
	// parameters are how many it has, as far as the server can tell.
	parameters int
}

// describe parses and describes the projection. Its parameter is a uuid; a second look,
// at which nothing is said of that, tells whether it is used.
func (b *Buffer) describe(ctx context.Context) (d described, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.db.StatementTimeout)
	defer cancel()
	conn, err := b.db.Acquire(ctx)
	if err != nil {
		return d, err
	}
	defer conn.Release()
	pgConn := conn.Conn().PgConn()
	statement, err := pgConn.Prepare(ctx, "", b.config.Own.Project, []uint32{pg.OIDUUID})
	if err != nil {
		return d, err
	}
	d.columns, d.parameters = statement.Fields, len(statement.ParamOIDs)
	if statement, err = pgConn.Prepare(ctx, "", b.config.Own.Project, nil); err == nil {
		d.parameters = len(statement.ParamOIDs)
	} else if !pg.IsStatementError(err) {
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

// misread says what the server has against a projection, and where in it.
func misread(project string, err *pgconn.PgError) string {
	where := ""
	if err.Position > 0 {
		line, column := place(project, int(err.Position))
		where = fmt.Sprintf(" at line %d, column %d", line, column)
	}
	text := "source.project is not right" + where + ": " + err.Message
	if err.Hint != "" {
		text += " (" + strings.TrimSuffix(err.Hint, ".") + ")"
	}
	return text
}

// place is the line and the column of a text's position, all of which count characters
// from 1.
func place(text string, position int) (line, column int) {
	line, column = 1, 1
	for i, c := range text {
		if utf8.RuneCountInString(text[:i]) >= position-1 {
			break
		}
		if column++; c == '\n' {
			line, column = line+1, 1
		}
	}
	return line, column
}

// projectedTypes are the types of the columns that a projection may return, nil where
// every type has a text that will do, and what to say of others.
var projectedTypes = [len(projectable)][]uint32{
	columnPayload:   {pg.OIDJSONB, pg.OIDJSON, pg.OIDBytea, pg.OIDText, pg.OIDVarchar, pg.OIDBpchar, pg.OIDName, pg.OIDUnknown},
	columnHeaders:   {pg.OIDJSONB, pg.OIDJSON, pg.OIDText, pg.OIDVarchar, pg.OIDUnknown},
	columnCreatedAt: {pg.OIDTimestamp, pg.OIDTimestamptz},
}

var projectedWanted = [len(projectable)]string{
	columnPayload: "jsonb, json, bytea or JSON in a text", columnHeaders: "json or jsonb", columnCreatedAt: "timestamptz",
}

const mendProject = "correct source.project, which returns a row an event with columns id and payload, and perhaps topic, key, headers and created_at"

// projection looks at what a projection returns.
func checkProjected(f *catalog.Findings, d described, key ownColumn) {
	switch {
	case len(d.columns) == 0:
		f.Add("source.project returns nothing, and a SELECT was expected", mendProject)
		return
	case d.parameters == 0:
		f.Add("source.project does not use $1, its parameter, which is the group_id of the batch that it is run for", "end it with WHERE e.group_id = $1")
	case d.parameters > 1:
		f.Add(fmt.Sprintf("source.project has %d parameters, and $1, the batch's group_id, is the only one there is", d.parameters), "end it with WHERE e.group_id = $1")
	}
	var seen [len(projectable)]bool
	for i, c := range d.columns {
		at := slices.Index(projectable[:], c.Name)
		switch {
		case at < 0: // its own business
			continue
		case seen[at]:
			f.Add("source.project returns two columns "+c.Name, mendProject)
		case at == columnID && !sameKind(c.DataTypeOID, key):
			f.Add(fmt.Sprintf("source.project returns an id that is %s, and the key %s is %s", d.types[i], key.quoted, key.kind), "return "+key.quoted+" AS id")
		case projectedTypes[at] != nil && !slices.Contains(projectedTypes[at], c.DataTypeOID):
			f.Add(fmt.Sprintf("source.project returns a column %s that is %s, and %s was expected", c.Name, d.types[i], projectedWanted[at]), mendProject)
		}
		seen[at] = true
	}
	for _, at := range []int{columnID, columnPayload} {
		if !seen[at] {
			f.Add("source.project returns no column "+projectable[at], mendProject)
		}
	}
}

// sameKind tells whether values of a type are a key's, or their texts.
func sameKind(oid uint32, key ownColumn) bool {
	switch oid {
	case pg.OIDText, pg.OIDVarchar:
		return true
	case pg.OIDInt8, pg.OIDInt4, pg.OIDInt2:
		return key.isInteger()
	}
	return oid == key.oid
}
