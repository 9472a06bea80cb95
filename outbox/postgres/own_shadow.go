package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// A projection says WHERE group_id = $1, and without an index on that column it reads all
// that waits; with one, each stamp has the index to write. So it runs with the table in the
// shadow of a common table expression of the same name, which holds the rows where the batch
// is and finds them by their ids: names in a WITH go before those of tables, and in the WITH
// itself the table is meant.
//
// It must mean the same. What reads the table by its schema, or through a view, reads it as
// it is; whatever is read by its bare name has to be of this batch alone. The planner says
// whether it is: see shadow.

// Where the batch is, as its take over finds it; which rows are its own is what the
// projection asks itself. What bounds them is looked up beforehand, and joins nothing.
const (
	shadowSQL = `
SELECT e.* FROM outbox_events e
WHERE own_find BETWEEN (SELECT first_id FROM outbox_batches WHERE group_id = $1) AND (SELECT last_id FROM outbox_batches WHERE group_id = $1)`

	shadowUUIDsSQL = `
SELECT e.* FROM outbox_events e
WHERE own_find = ANY ((SELECT uuids FROM outbox_batches WHERE group_id = $1)::uuid[])`
)

// All rows but the batch's. (A NULL is not unequal.)
const (
	othersSQL = `
SELECT e.* FROM outbox_events e WHERE e.group_id <> $1`

	unclaimedSQL = `
SELECT e.* FROM outbox_events e WHERE e.group_id IS NULL`
)

// Whether the table's bare name leads to it, and whether others are read with it.
const bareNameSQL = `
SELECT coalesce(to_regclass($1) = oid, false), relkind <> 'r' OR relhassubclass
FROM pg_class WHERE oid = $2::regclass`

// under is the projection with these rows in the table's place. In a sub-SELECT it has no
// semicolon at its end, and may end with a comment.
func under(t *table, rows, project string) string {
	return "WITH " + pgx.Identifier{t.own.topic}.Sanitize() + " AS NOT MATERIALIZED (" + t.sql(rows) + "\n)\nSELECT * FROM (\n" + unended(project) + "\n) projected"
}

// unended is a statement without the semicolon at its end. Where the one that is cut off
// was none, but part of a text, what is left is SQL no more; in a comment it is the same.
func unended(sql string) string {
	for i, c := range sql {
		if c == ';' && blank(sql[i+1:]) {
			return sql[:i]
		}
	}
	return sql
}

// blank tells whether there are only blanks, comments and semicolons.
func blank(sql string) bool {
	for {
		sql = strings.TrimLeft(sql, "; \t\r\n\f")
		switch {
		case sql == "":
			return true
		case strings.HasPrefix(sql, "--"):
			_, sql, _ = strings.Cut(sql, "\n")
		case strings.HasPrefix(sql, "/*"):
			comment, rest, closed := strings.Cut(sql[len("/*"):], "*/")
			if !closed || strings.Contains(comment, "/*") {
				return false
			}
			sql = rest
		default:
			return false
		}
	}
}

// shadow finds how the projection is run, and why not in the shadow: t.own.project and
// t.own.plain.
//
// The planner drops a scan whose conditions contradict each other. So the projection is
// planned once more with all other rows in the table's place, and where that leaves no scan
// of the table, each row of it was asked for its group_id. That proves it of one scan only,
// for where one is empty a join drops others: so there may be one. Nothing is run of it.
func (b *Buffer) shadow(ctx context.Context, t *table, events catalog.Table) error {
	project := b.config.Own.Project
	t.own.project = project
	var leads, many bool
	err := b.db.RoundTrip(ctx, []pg.Step{pg.ReadTx(b.db.StatementTimeout), {
		SQL: bareNameSQL, Args: []string{pgx.Identifier{events.Name}.Sanitize(), events.Quoted}, Row: func(v [][]byte) error {
			leads, many = pg.ReadBool(v[0]), pg.ReadBool(v[1])
			return nil
		},
	}})
	switch {
	case err != nil:
		return err
	case !leads:
		t.own.plain = "its name without the schema does not lead to it (search_path)"
		return nil
	case many:
		t.own.plain = "it has partitions or children"
		return nil
	}
	scans, err := b.scansOf(ctx, events, project)
	switch {
	case err != nil:
		return err
	case scans != 1:
		t.own.plain = fmt.Sprintf("source.project reads it in %d places, and one was expected", scans)
		return nil
	}
	rows := shadowSQL
	if !t.own.numbered() {
		rows = shadowUUIDsSQL
	}
	shadowed := under(t, rows, project)
	for _, sql := range []string{shadowed, under(t, othersSQL, project), under(t, unclaimedSQL, project)} {
		scans, err := b.scansOf(ctx, events, sql)
		passing := slices.Contains([]string{pg.CodeCancelled, pg.CodeLockTimeout, pg.CodeDeadlock, pg.CodeSerialization}, pg.Code(err))
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pg.IsStatementError(err) && !passing {
			t.own.plain = "source.project asks for what only the table itself has: " + pgErr.Message
			return nil
		}
		if err != nil {
			return err
		}
		if sql != shadowed && scans > 0 {
			t.own.plain = "source.project reads it by its schema's name, through a view, or more of it than WHERE group_id = $1"
			return nil
		}
	}
	t.own.project = shadowed
	return nil
}

// scansOf counts in how many places a statement reads the table.
func (b *Buffer) scansOf(ctx context.Context, events catalog.Table, sql string) (int, error) {
	plan, err := b.planOf(ctx, sql, buffer.NewGroupID())
	if err != nil {
		return 0, err
	}
	n := 0
	for _, scan := range plan.scans(events.Name) {
		if scan.Schema == events.Schema {
			n++
		}
	}
	return n, nil
}

// planOf has the server plan a statement of the user's, whose parameter is a batch's
// group_id. Nothing is run of it.
func (b *Buffer) planOf(ctx context.Context, sql string, groupID uuid.UUID) (*planNode, error) {
	var answer []byte
	err := b.db.RoundTrip(ctx, []pg.Step{pg.ReadTx(b.db.StatementTimeout, "constraint_exclusion", "on"), {
		SQL: "EXPLAIN (VERBOSE, FORMAT JSON) " + sql, Args: []string{groupID.String()},
		UserSQL: func([]pgconn.FieldDescription) {}, Row: func(v [][]byte) error {
			answer = slices.Clone(v[0])
			return nil
		},
	}})
	if err != nil {
		return nil, err
	}
	var plans []struct{ Plan planNode }
	if err := json.Unmarshal(answer, &plans); err != nil || len(plans) == 0 {
		return nil, fmt.Errorf("EXPLAIN answered %.100q: %w", answer, err)
	}
	return &plans[0].Plan, nil
}

const groupIndexSQL = `
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attname = 'group_id' AND a.attnum = i.indkey[0]
WHERE i.indrelid = $1::regclass AND i.indisvalid
  AND (i.indpred IS NULL OR pg_get_expr(i.indpred, i.indrelid) = '(group_id IS NOT NULL)') LIMIT 1`

// ownShadow says how the projection finds a batch's rows.
func (e *examination) ownShadow(ctx context.Context, events catalog.Table) {
	const about = "projection"
	own := e.b.table.Load().own
	if own.plain == "" {
		e.fine(about, "it finds a batch's rows of table "+events.Quoted+" by column "+own.found().quoted)
		return
	}
	index := ""
	if !e.ask(ctx, about, groupIndexSQL, func(v []string) { index = v[0] }, events.Quoted) {
		return
	}
	if index != "" {
		e.fine(about, "it finds a batch's rows of table "+events.Quoted+" by index "+index+"; not by column "+own.found().quoted+", for "+own.plain)
		return
	}
	e.warn(about, "for each batch it reads all of table "+events.Quoted+", for "+own.plain+
		": write the table's name without its schema, once, with WHERE group_id = $1, or have an index",
		"CREATE INDEX ON "+events.Quoted+" (group_id) WHERE group_id IS NOT NULL")
}
