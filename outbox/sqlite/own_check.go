package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const ownTableSQL = `
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

// ownTable is what a table of the user's own says of itself.
type ownTable struct {
	there, autoincrement, withoutRowid bool
	keys                               int // columns of its primary key
	keyType                            sql.NullString
	keyIs                              int // place of source.id in the primary key
	groupType                          sql.NullString
	groupFull                          bool           // group_id is NOT NULL, or has a DEFAULT
	groupUnique                        sql.NullString // index that lets a group_id be there only once
	groupIndexed                       bool
}

func (b *Buffer) ownTable(ctx context.Context, tx transaction) (t ownTable, err error) {
	err = tx.tx.QueryRowContext(ctx, ownTableSQL, b.config.Table, b.config.Own.ID).Scan(&t.there, &t.autoincrement, &t.withoutRowid,
		&t.keys, &t.keyType, &t.keyIs, &t.groupType, &t.groupFull, &t.groupUnique, &t.groupIndexed)
	return t, err
}

// missingOwn lists what a table of the user's own lacks, and what is wrong with its
// projection.
func (b *Buffer) missingOwn(ctx context.Context, tx transaction) (missing []string, err error) {
	table, key := quote(b.config.Table), quote(b.config.Own.ID)
	say := func(format string, a ...any) { missing = append(missing, "table "+table+" "+fmt.Sprintf(format, a...)) }
	t, err := b.ownTable(ctx, tx)
	if err != nil {
		return nil, err
	}
	addGroup := "ALTER TABLE " + table + " ADD COLUMN group_id TEXT"
	switch {
	case !t.there:
		say("does not exist, or is no table: look at source.table; it is yours, and migrate does not make it")
		return missing, nil
	case !t.keyType.Valid:
		say("has no column %s: look at source.id, which names its primary key", key)
	case t.keyType.String != "INTEGER" || t.keyIs != 1 || t.keys != 1 || t.withoutRowid:
		say("has no %s INTEGER PRIMARY KEY, which only grows: look at source.id, or make the table anew with %s INTEGER PRIMARY KEY AUTOINCREMENT", key, key)
	}
	switch {
	case !t.groupType.Valid:
		say("has no column group_id: %s", addGroup)
	case !holdsUUID(t.groupType.String):
		say("has a column group_id of type %s, TEXT or BLOB was expected: make it anew: %s", t.groupType.String, addGroup)
	case t.groupFull:
		say("has a column group_id that is NOT NULL or has a DEFAULT, and only what has none is claimed: make it anew: %s", addGroup)
	case t.groupUnique.Valid:
		say("has an index that lets no two events have one group_id: DROP INDEX %s", quote(t.groupUnique.String))
	}
	if len(missing) > 0 {
		return missing, nil
	}
	if _, err := b.projected(ctx, tx); err == nil {
		say("is projected without the parameter ?, and every batch would get every event: add WHERE group_id = ? to source.project")
	} else if _, err := b.projected(ctx, tx, tx.shape.stamp(uuid.Nil)); err != nil {
		say("cannot be projected, %s (it takes one parameter, ?, the group_id): look at source.project", strings.ReplaceAll(oneLine(err).Error(), "; ", ", "))
	}
	return missing, nil
}

// holdsUUID tells of a column's declared type, in upper case, whether text or bytes of a
// uuid stay there as they are.
func holdsUUID(declared string) bool {
	if isBytes(declared) || declared == "" || declared == "ANY" || declared == "UUID" {
		return true
	}
	return strings.Contains(declared, "TEXT") || strings.Contains(declared, "CHAR") || strings.Contains(declared, "CLOB")
}

// own looks at what only a table of the user's own may lack.
func (e *examination) own(ctx context.Context) {
	const (
		ids  = "ids"
		plan = "projection plan"
	)
	var (
		t     ownTable
		steps []string
		sees  sight
	)
	err := e.b.read(ctx, "looking at the table", func(tx transaction) (err error) {
		if t, err = e.b.ownTable(ctx, tx); err != nil {
			return err
		}
		steps, sees, err = e.projectionPlan(ctx, tx)
		return err
	})
	if e.failed(plan, err) {
		return
	}
	table := quote(e.b.config.Table)
	if t.autoincrement {
		e.fine(ids, "they are never handed out twice (AUTOINCREMENT)")
	} else {
		e.warn(ids, "table "+table+" has no AUTOINCREMENT: when the events with the highest ids are gone their ids are handed out again, and a sink may take the new event for a duplicate",
			fmt.Sprintf("make the table anew with %s INTEGER PRIMARY KEY AUTOINCREMENT and copy its rows", quote(e.b.config.Own.ID)))
	}
	if step := walk(steps); step != "" {
		mend := "CREATE INDEX " + quote(e.b.config.Table+"_group_id") + " ON " + table + " (group_id) WHERE group_id IS NOT NULL"
		switch {
		case sees == batchOnly || t.groupIndexed:
			mend = "an index on the column by which that table is joined"
		case sees == elsewhere:
			mend = "write the table's name without its schema, and not a view's, in source.project: " + table
		}
		e.warn(plan, "the projection walks over a table for every batch: "+step+"; harmless where that is small", mend)
		return
	}
	e.fine(plan, "the projection finds its rows by indexes")
}

// projectionPlan is how a batch is projected.
func (e *examination) projectionPlan(ctx context.Context, tx transaction) ([]string, sight, error) {
	statement, err := e.b.projecting(ctx, tx, &buffer.Lease{Batch: buffer.Batch{GroupID: uuid.Nil}, FirstID: 1, LastID: 1000})
	if err != nil {
		return nil, unknown, err
	}
	steps, err := planSteps(tx.tx.QueryContext(ctx, "EXPLAIN QUERY PLAN "+statement, tx.shape.stamp(uuid.Nil)))
	return steps, sight(tx.shape.sees.Load()), err
}

// walk is the first step that walks over a table, "" if there is none; an index that SQLite
// makes for the statement takes such a walk. What the plan itself puts together is no table.
func walk(steps []string) string {
	made := map[string]bool{}
	for _, step := range steps {
		for _, how := range []string{"CO-ROUTINE ", "MATERIALIZE "} {
			if name, is := strings.CutPrefix(step, how); is {
				made[name] = true
			}
		}
	}
	for _, step := range steps {
		name, is := strings.CutPrefix(step, "SCAN ")
		if is && !made[name] && name != "CONSTANT ROW" || strings.Contains(step, " USING AUTOMATIC ") {
			return step
		}
	}
	return ""
}
