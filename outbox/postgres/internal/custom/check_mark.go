package custom

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

const (
	markFix  = "correct source.mark: SQL expressions by column, such as {processed_at: now()}"
	whereFix = "correct source.where, which must be false once the columns of source.mark are set, as processed_at IS NULL is"
)

// checkMark adds what is wrong with source.mark. It runs after checkWhere.
func checkMark(ctx context.Context, db *pg.DB, t Facts, c Config, missing *catalog.Findings) error {
	if c.Mark == nil {
		return nil
	}
	if c.Where == "" {
		missing.Add("source.where is missing: a marked row stays, and would be sent for ever", whereFix)
		return nil
	}
	before, columns := len(*missing), slices.Sorted(maps.Keys(c.Mark))
	for _, name := range columns {
		checkMarkColumn(missing, t, c, name)
	}
	if len(*missing) > before {
		return nil
	}
	qualified := t
	qualified.Schemas = nil // names are found in pg_catalog, or have a schema
	for _, name := range columns {
		if err := checkPlanters(ctx, db, qualified, "source.mark", c.Mark[name], missing); err != nil || len(*missing) > before {
			return err
		}
	}
	var set []string
	for _, name := range columns {
		expression := c.Mark[name]
		// Once between words and once in parentheses; see whereBefore.
		refused, err := refusal(ctx, db, "EXPLAIN (FORMAT JSON) SELECT CASE WHEN true THEN "+expression+"\nEND, (\n"+expression+"\n) FROM "+t.Table.Quoted+" e")
		if err != nil {
			return err
		}
		if refused != nil {
			missing.Add("source.mark."+name+" is not right: "+withHint(refused), markFix+"; names of functions and types outside of pg_catalog need their schema")
		}
		set = append(set, t.Column(name).Quoted+" = (\n"+expression+"\n)")
	}
	if len(*missing) > before {
		return nil
	}
	refused, err := refusal(ctx, db, "EXPLAIN (FORMAT JSON) UPDATE "+t.Table.Quoted+" e SET "+strings.Join(append(set, "group_id = NULL"), ", "))
	switch {
	case err != nil:
		return err
	case refused != nil && refused.Code == pg.CodeNoPrivilege: // checkPrivileges says which
	case refused != nil:
		missing.Add("source.mark is not right: "+withHint(refused), markFix)
		return nil
	}
	return checkMarked(ctx, db, t, c, missing)
}

func checkMarkColumn(missing *catalog.Findings, t Facts, c Config, name string) {
	if hasParameter(c.Mark[name]) {
		missing.Add("source.mark."+name+" has a parameter; expected none", markFix)
	}
	column := t.Column(name)
	what := "column " + pg.Quote(name) + " of table " + t.Table.Quoted + ", which source.mark names,"
	switch {
	case column.Name == "":
		addMissing(missing, t, name, "source.mark", "name a column that says whether a row is done, or: ALTER TABLE "+t.Table.Quoted+" ADD COLUMN "+pg.Quote(name)+" timestamptz", "")
	case column.Generated:
		missing.Add(what+" is computed by the database", "name another column")
	case slices.Contains([]string{c.ID, c.Cursor, "group_id"}, name):
		missing.Add(what+" names the event", "name another column")
	}
}

// checkMarked adds whether a marked row may still be an event. It is certain where the condition depends on the marked columns alone, and they on no
// other; otherwise the first rows that are events are tried. What else there may be is found when such a row is marked: see custom_still.
func checkMarked(ctx context.Context, db *pg.DB, t Facts, c Config, missing *catalog.Findings) error {
	var others, marked []string
	for _, column := range t.Columns {
		expression, marks := c.Mark[column.Name]
		if !marks {
			others = append(others, "e."+column.Quoted)
			continue
		}
		marked = append(marked, "(\n"+expression+"\n)::"+column.Type+" AS "+column.Quoted)
	}
	// Without the marked columns, a condition on them cannot be parsed.
	refused, err := refusal(ctx, db, "EXPLAIN (FORMAT JSON) SELECT FROM (SELECT "+strings.Join(others, ", ")+" FROM "+t.Table.Quoted+" e) e WHERE (\n"+c.Where+"\n)")
	if err != nil {
		return err
	}
	if refused == nil || refused.Code != pg.CodeNoColumn {
		missing.Add("source.where does not depend on a column of source.mark, so a marked row would be sent for ever", whereFix)
		return nil
	}
	where := "(\n" + c.Where + "\n)"
	for _, rows := range []string{
		"SELECT " + strings.Join(marked, ", "), // of any row; it cannot be parsed if it depends on others
		"SELECT " + strings.Join(append(others, marked...), ", ") + " FROM (SELECT * FROM " + t.Table.Quoted + " e WHERE " + where + " LIMIT 100) e",
	} {
		var still bool
		err := db.RoundTrip(ctx, []pg.Step{beginReadOnly, db.UserTx(markedLimit, pg.SearchPath), {
			SQL: "SELECT true FROM (" + rows + ") e WHERE " + where + " LIMIT 1", Args: []string{uuid.Nil.String()}, UserSQL: true,
			Row: func([][]byte) error { still = true; return nil },
		}, rollback})
		switch {
		case err != nil && (!pg.IsStatementError(err) && pg.Code(err) != pg.CodeCancelled):
			return err
		case err != nil: // another column, a value that the expression cannot have, a sequence that it draws from, a large table without an index
		case still:
			missing.Add("source.where is still true for a row that source.mark has marked, so it would be sent for ever", whereFix)
			return nil
		}
	}
	return nil
}

// markedLimit bounds the search for rows that are events, which is no more than a help.
const markedLimit = 2 * time.Second

// refusal returns what the server has against a statement of the user's, which it only plans.
func refusal(ctx context.Context, db *pg.DB, sql string) (*pgconn.PgError, error) {
	_, err := explain(ctx, db, sql)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pg.IsStatementError(err) {
		return pgErr, nil
	}
	return nil, err
}

// markDenied are the columns of the mark that the role may not update.
const markDeniedSQL = `
SELECT coalesce(string_agg(quote_ident(attname), ', ' ORDER BY attname), ''), count(*)
FROM pg_attribute WHERE attrelid = $1::regclass AND attname = ANY ($2::name[]) AND NOT attisdropped AND NOT has_column_privilege(attrelid, attnum, 'UPDATE')`

func markDenied(ctx context.Context, db *pg.DB, t Facts, c Config) (privilege string, err error) {
	var names pg.Array
	for _, name := range slices.Sorted(maps.Keys(c.Mark)) {
		names.Append([]byte(pg.Text(name)))
	}
	err = db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {
		SQL: markDeniedSQL, Args: []string{t.Table.Quoted, names.String()}, Row: func(v [][]byte) error {
			if pg.ReadInt8(v[1]) > 0 {
				privilege = "UPDATE (" + string(v[0]) + ")"
			}
			return nil
		},
	}})
	return privilege, err
}
