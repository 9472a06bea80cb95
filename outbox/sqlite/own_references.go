package sqlite

import "context"

// Foreign keys of other tables. Those that hold a delivered event back, and those whose
// tables are read whole for each event that is deleted. See
// https://sqlite.org/foreignkeys.html#fk_indexes.
const ownReferencesSQL = `
SELECT t.name, max(k.on_delete NOT IN ('CASCADE', 'SET NULL', 'SET DEFAULT')), group_concat('"' || replace(k."from", '"', '""') || '"', ', '),
       max(EXISTS (SELECT 1 FROM pragma_table_info(t.name) WHERE pk = 1 AND name = k."from" COLLATE NOCASE)
           OR EXISTS (SELECT 1 FROM pragma_index_list(t.name) AS l JOIN pragma_index_info(l.name) AS c
                      WHERE NOT l.partial AND c.seqno = 0 AND c.name = k."from" COLLATE NOCASE))
FROM sqlite_schema AS t, pragma_foreign_key_list(t.name) AS k
WHERE t.type = 'table' AND k."table" = ?1 COLLATE NOCASE
GROUP BY t.name, k.id ORDER BY t.name, k.id`

// reference is a foreign key that refers to the user's own table.
type reference struct {
	table, columns string
	holds, indexed bool
}

func (b *Buffer) references(ctx context.Context, tx transaction) (all []reference, _ error) {
	rows, err := tx.tx.QueryContext(ctx, ownReferencesSQL, b.config.Table)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r reference
		if err := rows.Scan(&r.table, &r.holds, &r.columns, &r.indexed); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// references looks at the foreign keys of other tables.
func (e *examination) references(ctx context.Context) {
	const about = "foreign keys"
	var all []reference
	err := e.b.read(ctx, "looking at foreign keys", func(tx transaction) (err error) {
		all, err = e.b.references(ctx, tx)
		return err
	})
	if e.failed(about, err) {
		return
	}
	for _, r := range all {
		table := quote(r.table)
		if r.holds {
			e.warn(about, "table "+table+" holds back what is delivered: an event that a row there refers to cannot be deleted",
				"make that table anew with "+r.columns+" REFERENCES "+quote(e.b.config.Table)+" ON DELETE SET NULL, or CASCADE")
		}
		if !r.indexed {
			e.warn(about, "table "+table+" refers to table "+quote(e.b.config.Table)+" by columns without an index, and is read whole for each event that is deleted",
				"CREATE INDEX "+quote(r.table+"_"+e.b.config.Table)+" ON "+table+" ("+r.columns+")")
		}
	}
}
