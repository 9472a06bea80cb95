package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/notready"
	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

const customFactsSQL = `
SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE),
       EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE AND sql LIKE '%autoincrement%'),
       coalesce((SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?1 COLLATE NOCASE), 0),
       (SELECT count(*) FROM pragma_table_info(?1) WHERE pk > 0),
       (SELECT upper(type) FROM pragma_table_info(?1) WHERE name = ?2 COLLATE NOCASE),
       coalesce((SELECT pk FROM pragma_table_info(?1) WHERE name = ?2 COLLATE NOCASE), 0),
       (SELECT upper(type) FROM pragma_table_info(?1) WHERE name = 'group_id' COLLATE NOCASE),
       coalesce((SELECT "notnull" OR coalesce(upper(dflt_value), 'NULL') <> 'NULL'
                 FROM pragma_table_info(?1) WHERE name = 'group_id' COLLATE NOCASE), FALSE),
       (SELECT l.name FROM pragma_index_list(?1) AS l
        WHERE l."unique" AND 1 = (SELECT count(*) FROM pragma_index_info(l.name))
          AND EXISTS (SELECT 1 FROM pragma_index_info(l.name) WHERE name = 'group_id' COLLATE NOCASE) LIMIT 1),
       EXISTS (SELECT 1 FROM pragma_index_list(?1) AS l JOIN pragma_index_info(l.name) AS c
               WHERE c.seqno = 0 AND c.name = 'group_id' COLLATE NOCASE)`

// customFacts is the definition of a custom table as far as Check and Diagnose need it.
type customFacts struct {
	exists, autoincrement, withoutRowid bool
	keys                                int // columns of its primary key
	keyType                             sql.NullString
	keyPosition                         int // of source.id in the primary key; 0: it is not part of it
	groupType                           sql.NullString
	groupNotNull                        bool           // group_id is NOT NULL, or has a DEFAULT
	groupUnique                         sql.NullString // index that allows a group_id only once
	groupIndexed                        bool
}

func (c *customTable) facts(ctx context.Context, tx transaction) (f customFacts, err error) {
	err = tx.tx.QueryRowContext(ctx, customFactsSQL, c.b.config.Table, c.b.config.Custom.ID).Scan(&f.exists, &f.autoincrement, &f.withoutRowid,
		&f.keys, &f.keyType, &f.keyPosition, &f.groupType, &f.groupNotNull, &f.groupUnique, &f.groupIndexed)
	return f, err
}

func (c *customTable) missing(ctx context.Context, tx transaction) (missing []buffer.Finding, err error) {
	table, key := db.Quote(c.b.config.Table), db.Quote(c.b.config.Custom.ID)
	add := func(text, fix string) { missing = append(missing, problem("table "+table+" "+text, fix)) }
	f, err := c.facts(ctx, tx)
	if err != nil {
		return nil, err
	}
	switch {
	case !f.exists:
		if lost, err := c.b.lost(ctx, tx, c.b.config.Table); err != nil || lost != nil {
			return lost, err
		}
		add("does not exist, or is not a table", "correct source.table; migrate does not make a custom table")
		return missing, nil
	case !f.keyType.Valid:
		add("has no column "+key, "correct source.id, the column of its primary key")
	case f.keyType.String != "INTEGER" || f.keyPosition != 1 || f.keys != 1 || f.withoutRowid:
		add("has no "+key+" INTEGER PRIMARY KEY, which only grows",
			"correct source.id, or create the table again with "+key+" INTEGER PRIMARY KEY AUTOINCREMENT")
	}
	if created := c.b.config.Custom.CreatedAt; created != "" && !tx.shape.ages {
		guess := ""
		if near := buffer.Nearest(created, tx.shape.columns, max(1, len(created)/3)); near != "" {
			guess = " (did you mean " + near + "?)"
		}
		add("has no column "+db.Quote(created)+", which source.created_at names"+guess, "name the column that says when a row was inserted")
	}
	if column := c.b.config.Custom.AvailableAt; column != "" && !slices.ContainsFunc(tx.shape.columns, func(has string) bool { return strings.EqualFold(has, column) }) {
		guess := ""
		if near := buffer.Nearest(column, tx.shape.columns, max(1, len(column)/3)); near != "" {
			guess = " (did you mean " + near + "?)"
		}
		add("has no column "+db.Quote(column)+", which source.available_at names"+guess, "ALTER TABLE "+table+" ADD COLUMN "+db.Quote(column)+" TEXT")
	}
	addGroup := "ALTER TABLE " + table + " ADD COLUMN group_id TEXT"
	switch {
	case !f.groupType.Valid:
		add("has no column group_id", addGroup)
	case !holdsUUID(f.groupType.String):
		add("has a column group_id of type "+f.groupType.String+"; expected TEXT or BLOB", "drop the column, then "+addGroup)
	case f.groupNotNull:
		add("has a column group_id that is NOT NULL or has a DEFAULT, but only events without a group_id are claimed", "drop the column, then "+addGroup)
	case f.groupUnique.Valid:
		add("has an index that allows each group_id only once", "DROP INDEX "+db.Quote(f.groupUnique.String))
	}
	if len(missing) > 0 {
		return missing, nil
	}
	if text, err := c.checkWhere(ctx); err != nil || text != "" {
		add(text, "correct source.where: one condition on the columns of a row, such as status = 'ready', as in a partial index: without subqueries, table names and volatile functions")
		return missing, err
	}
	if column := c.b.config.Custom.AvailableAt; column != "" {
		fix := buffer.SQLiteDelayedIndex(db.Quote(delayedIndex(c.b.config.Table)), table, db.Quote(column))
		if missing, err := c.b.lacksDelayedIndex(ctx, tx, column, fix); err != nil || missing != nil {
			return missing, err
		}
	}
	if text, err := c.checkMark(ctx, tx); err != nil || text != "" {
		add(text, "correct source.mark, SQL expressions by column, and source.where, which they make false")
		return missing, err
	}
	if text, fix := c.checkProjection(ctx, tx); text != "" {
		add(text, fix)
		missing[0].Subject = notready.Projection
	}
	return missing, nil
}

// checkWhere returns what is wrong with source.where; "" if nothing is. An expression is right if it is both between CASE WHEN and THEN and in parentheses, which
// its text could close. That nothing in it is volatile is what SQLite asks of a partial index; EXPLAIN makes none.
func (c *customTable) checkWhere(ctx context.Context) (text string, err error) {
	where, table := c.b.config.Custom.Where, db.Quote(c.b.config.Table)
	if where == "" {
		return "", nil
	}
	for _, statement := range []string{
		"SELECT CASE WHEN " + where + "\nTHEN 1 END FROM " + table + " AS e WHERE (\n" + where + "\n) LIMIT 0",
		"EXPLAIN CREATE INDEX relay_where ON " + table + " (" + db.Quote(c.b.config.Custom.ID) + ") WHERE " + where,
	} {
		if refused, err := c.refusal(ctx, statement); refused != "" || err != nil {
			return "has a source.where that is not right: " + refused, err
		}
	}
	return "", nil
}

// checkProjection prepares the projection, which runs nothing of it, and returns what is wrong; "" if
// nothing is.
func (c *customTable) checkProjection(ctx context.Context, tx transaction) (text, fix string) {
	project, uses := c.projectOf(tx.shape, uuid.Nil, 1, 1, nil)
	if !uses {
		if _, err := projectionStatement(ctx, tx, project); err == nil {
			return "is projected without " + projection.Events + " and without the parameter ?, so every batch would get every event",
				"write FROM " + projection.Events + " e in source.project"
		}
	}
	if _, err := projectionStatement(ctx, tx, project, tx.shape.stampOf(uuid.Nil)); err != nil {
		return "cannot be projected: " + projection.OneLine(err).Error(),
			"correct source.project; its only parameter is ?, the group_id"
	}
	return "", ""
}

// holdsUUID reports whether a column of the declared type, in upper case, keeps the text or the bytes of a
// uuid as they are.
func holdsUUID(declared string) bool {
	if isBytes(declared) || declared == "" || declared == "ANY" || declared == "UUID" {
		return true
	}
	return strings.Contains(declared, "TEXT") || strings.Contains(declared, "CHAR") || strings.Contains(declared, "CLOB")
}

func (c *customTable) diagnose(ctx context.Context, d *diagnosis) {
	const (
		ids  = "ids"
		plan = "projection plan"
	)
	// An index on group_id has the key too, in order.
	if c.b.conditional() {
		c.diagnoseWhere(ctx, d)
	} else {
		d.claimPlan(ctx, pickCustomSQL, "USING INTEGER PRIMARY KEY", "(group_id=? AND rowid>?)")
	}
	var (
		f     customFacts
		s     *shape
		steps []string
		uses  bool
	)
	err := c.b.begin(ctx, c.b.db, readOnly, func(tx transaction) error {
		missing, err := c.missing(ctx, tx)
		if err != nil || len(missing) > 0 { // tables says what is missing
			return errors.Join(err, errNothing)
		}
		if f, err = c.facts(ctx, tx); err != nil {
			return err
		}
		s = tx.shape
		steps, uses, err = c.projectionPlan(ctx, tx)
		return err
	})
	if errors.Is(err, errNothing) || d.failed(plan, err) {
		return
	}
	table := db.Quote(c.b.config.Table)
	if f.autoincrement {
		d.ok(ids, "ids are never handed out twice (AUTOINCREMENT)")
	} else {
		d.warn(ids, "table "+table+" has no AUTOINCREMENT: after the events with the highest ids are gone, their ids are handed out again, and a sink may take the new event for a duplicate",
			fmt.Sprintf("create the table again with %s INTEGER PRIMARY KEY AUTOINCREMENT and copy its rows", db.Quote(c.b.config.Custom.ID)))
	}
	if !s.ages {
		d.warn("ages", "no column of table "+table+" says when a row was inserted: the age of waiting events is unknown, and relay_oldest_pending_seconds is absent",
			"add such a column, and name it as source.created_at")
	}
	if unsent := c.b.config.Custom.Unsent(s.columns); unsent != nil {
		d.findings = append(d.findings, projection.Unsent(unsent, table))
	}
	if ignored, err := c.b.IgnoredColumns(ctx); !d.failed("projection", err) && ignored != nil {
		d.findings = append(d.findings, projection.Unknown(ignored))
	}
	if c.b.config.Custom.Where == "" {
		c.marks(ctx, d, s.columns)
	} else {
		c.undecided(ctx, d)
		c.excluded(ctx, d)
	}
	c.neverAvailable(ctx, d)
	c.early(ctx, d, s)
	c.postponed(ctx, d, s)
	c.ended(ctx, d, s.columns)
	c.gates(ctx, d, s)
	if step := tableScan(steps); step != "" {
		fix := "create an index on the column by which that table is joined"
		if !uses && !f.groupIndexed {
			fix = "write FROM " + projection.Events + " e in source.project, or: CREATE INDEX " + db.Quote(c.b.config.Table+"_group_id") +
				" ON " + table + " (group_id) WHERE group_id IS NOT NULL"
		}
		d.warn(plan, "the projection reads a whole table for every batch: "+step+"; harmless if that table is small", fix)
	} else {
		d.ok(plan, "the projection finds its rows by indexes")
	}
}

// diagnoseWhere adds whether an index has only the rows that are events.
func (c *customTable) diagnoseWhere(ctx context.Context, d *diagnosis) {
	const about = "source.where"
	var steps []string
	err := c.b.begin(ctx, c.b.db, readOnly, func(tx transaction) (err error) {
		steps, err = planSteps(tx.rows(ctx, "EXPLAIN QUERY PLAN "+pickCustomSQL, 0, 1000, ""))
		return err
	})
	if err != nil { // tables says what is missing
		return
	}
	if plan := strings.Join(steps, ", "); strings.Contains(plan, " INDEX ") {
		d.ok(about, "a claim finds events by an index: "+plan)
		return
	}
	table := c.b.config.Table
	d.warn(about, "no index of table "+db.Quote(table)+" has only events: claims and counts read rows that are no events, too",
		"CREATE INDEX "+db.Quote(table+"_unsent")+" ON "+db.Quote(table)+" ("+db.Quote(c.b.config.Custom.ID)+") WHERE "+strings.Join(strings.Fields(c.b.config.Custom.Where), " ")+
			" -- without a part that depends on the time")
}

// projectionPlan returns the plan of the projection, and whether it uses {events}.
func (c *customTable) projectionPlan(ctx context.Context, tx transaction) (steps []string, uses bool, err error) {
	project, uses := c.projectOf(tx.shape, uuid.Nil, 1, 1000, nil)
	stamp := tx.shape.stampOf(uuid.Nil)
	statement, err := projectionStatement(ctx, tx, project, stamp)
	if err != nil {
		return nil, uses, err
	}
	steps, err = planSteps(tx.tx.QueryContext(ctx, "EXPLAIN QUERY PLAN "+statement, stamp))
	return steps, uses, err
}

// tableScan returns the first step that reads a whole table, "" if there is none; SQLite avoids such a scan
// with an automatic index, which reads the whole table too. What the plan itself materializes is no table.
func tableScan(steps []string) string {
	made := map[string]bool{}
	for _, step := range steps {
		for _, how := range []string{"CO-ROUTINE ", "MATERIALIZE "} {
			if name, ok := strings.CutPrefix(step, how); ok {
				made[name] = true
			}
		}
	}
	for _, step := range steps {
		name, ok := strings.CutPrefix(step, "SCAN ")
		if ok && !made[name] && name != "CONSTANT ROW" || strings.Contains(step, " USING AUTOMATIC ") {
			return step
		}
	}
	return ""
}
