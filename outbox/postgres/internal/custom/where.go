package custom

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// condition returns source.where in the form that statements contain, and whether there is one. A comment may end it.
func condition(where string) (sql string, conditional bool) {
	if where == "" {
		return "true", false
	}
	return "(\n" + where + "\n)", true
}

// CountExcluded counts rows that are no events, up to a limit.
func (t *Table) CountExcluded(ctx context.Context, limit int) (n int, err error) {
	if t.condition == "" {
		return 0, nil
	}
	err = t.Base.DB.RoundTrip(ctx, []pg.Step{pg.ReadTx(pg.BulkTimeout), {
		SQL:  "SELECT count(*)::text FROM (SELECT FROM " + t.tables.Events + " e WHERE (" + t.where + ") IS NOT TRUE LIMIT " + strconv.Itoa(limit) + ") excluded",
		Args: []string{uuid.Nil.String()}, UserSQL: true,
		Row: func(v [][]byte) error {
			n, err = strconv.Atoi(string(v[0]))
			return err
		},
	}})
	return n, err
}

// CountUndecided counts the rows without group_id for which the condition is NULL, among the last limit of them by the key.
func (t *Table) CountUndecided(ctx context.Context, limit int) (n string, err error) {
	if t.condition == "" {
		return "0", nil
	}
	err = t.Base.DB.RoundTrip(ctx, []pg.Step{pg.ReadTx(pg.BulkTimeout), {
		SQL: "SELECT count(*)::text FROM (SELECT (" + t.where + ") AS is_event FROM " + t.tables.Events + " e WHERE e.group_id IS NULL ORDER BY e." + t.find().Quoted + " DESC LIMIT " +
			strconv.Itoa(limit) + ") AS looked WHERE is_event IS NULL",
		Args: []string{uuid.Nil.String()}, UserSQL: true,
		Row: func(v [][]byte) error {
			n = string(v[0])
			return nil
		},
	}})
	return n, err
}

var (
	// terms separates what AND and OR connect, as far as that can be seen without a parser.
	terms = regexp.MustCompile(`(?i)\b(?:and|or)\b`)
	// clock matches the time of the session, with or without its zone.
	clock = regexp.MustCompile(`(?i)\b(?:now|statement_timestamp|clock_timestamp|transaction_timestamp)\s*\(|\b(?:current_timestamp|localtimestamp|current_date)\b`)
	// zoned matches a conversion to or from a zone.
	zoned = regexp.MustCompile(`(?i)\bat\s+time\s+zone\b|\btimezone\s*\(`)
)

// comparesLocal reports whether a part of a condition has both a column and the time, and converts neither.
func comparesLocal(where, column string) bool {
	name := regexp.MustCompile(`(?i)(?:^|[^\pL\pN_$])` + regexp.QuoteMeta(column) + `(?:$|[^\pL\pN_$])`)
	return slices.ContainsFunc(terms.Split(where, -1), func(term string) bool {
		return clock.MatchString(term) && !zoned.MatchString(term) && name.MatchString(term)
	})
}

// An expression is right where both of these are: one context has parentheses that the text could close, the other has none. The subquery keeps its own
// node in the plan if what it computes is volatile, because the planner then neither merges it nor moves a condition into it.
const (
	whereBefore = `EXPLAIN (FORMAT JSON) SELECT FROM (SELECT CASE WHEN `
	whereAfter  = "\nTHEN true END AS is_event FROM %s e WHERE (\n%s\n)) w WHERE w.is_event"
)

// parameter matches $1 outside of string literals.
var parameter = regexp.MustCompile(`\$[0-9]`)

// hasParameter reports whether SQL of a setting has one, or may have: in a statement of the relay it would be one of that.
func hasParameter(sql string) bool {
	code, _, plain := split(sql)
	if !plain {
		code = sql
	}
	return parameter.MatchString(code)
}

// checkWhere adds what is wrong with source.where.
func checkWhere(ctx context.Context, db *pg.DB, t Facts, c Config, missing *catalog.Findings) error {
	if c.Where == "" {
		return nil
	}
	const fix = "correct source.where: one condition on the columns of a row, such as status = 'ready'"
	if hasParameter(c.Where) {
		missing.Add("source.where has a parameter; expected none", fix)
		return nil
	}
	before, qualified := len(*missing), t
	qualified.Schemas = nil                                                                                               // names are found in pg_catalog, or have a schema
	if err := checkPlanters(ctx, db, qualified, "source.where", c.Where, missing); err != nil || len(*missing) > before { // parsing it runs code
		return err
	}
	plan, err := explain(ctx, db, whereBefore+c.Where+fmt.Sprintf(whereAfter, t.Table.Quoted, c.Where))
	pgErr, refused := errors.AsType[*pgconn.PgError](err)
	switch {
	case err != nil && (!refused || !pg.IsStatementError(err)):
		return err
	case refused && pgErr.Code == pg.CodeNoPrivilege:
		missing.Add("role "+t.Table.Role+" may not read what source.where reads: "+pgErr.Message, "GRANT SELECT ON the table, or USAGE ON the SCHEMA, TO "+pg.Quote(t.Table.Role))
	case refused:
		missing.Add("source.where is not right"+placeIn(c.Where, int(pgErr.Position)-utf8.RuneCountInString(whereBefore))+": "+withHint(pgErr), fix+
			"; names of functions and types outside of pg_catalog need their schema")
	case plan.Has("Subquery Scan"):
		missing.Add("source.where calls a volatile function, whose result may differ each time; expected a condition that depends on the row (now() is allowed)", fix)
	}
	return nil
}

// explain plans a statement of the user's with the search path that claims have.
func explain(ctx context.Context, db *pg.DB, sql string) (*pg.Plan, error) {
	var answer []byte
	err := db.RoundTrip(ctx, []pg.Step{beginReadOnly, db.UserTx(db.StatementTimeout, pg.SearchPath), {
		SQL: sql, Args: []string{uuid.Nil.String()}, UserSQL: true, Row: func(v [][]byte) error {
			answer = slices.Clone(v[0])
			return nil
		},
	}, rollback})
	if err != nil {
		return nil, err
	}
	return pg.ParsePlan(answer)
}

// placeIn returns line and column of a position in a setting, as part of a sentence; "" if it is not in it.
func placeIn(text string, position int) string {
	if position < 1 || position > utf8.RuneCountInString(text) {
		return ""
	}
	line, column := place(text, "", position)
	return fmt.Sprintf(" at line %d, column %d", line, column)
}

func withHint(err *pgconn.PgError) string {
	if err.Hint == "" {
		return err.Message
	}
	return err.Message + " (" + strings.TrimSuffix(err.Hint, ".") + ")"
}
