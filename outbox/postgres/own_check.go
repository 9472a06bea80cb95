package postgres

// own tells what is missing of a table of the user's own.
func (f *findings) own(t ownFacts, c Config) {
	if !t.table.exists {
		f.add("table %s does not exist (or its schema may not be used): it is yours to make", t.table.wanted)
		return
	}
	f.table(t.table, nil, all)
	key := t.column(c.Own.ID)
	switch {
	case key.name == "":
		f.add("table %s has no column %q, which source.id names: name its primary key", t.table.quoted, c.Own.ID)
	case !key.unique || !key.notNull:
		f.add("column %s of table %s is not its primary key: ALTER TABLE %s ADD PRIMARY KEY (%s)", key.quoted, t.table.quoted, t.table.quoted, key.quoted)
	case c.Own.Cursor == "" && !key.isInteger() && key.oid != oidUUID:
		f.add("the primary key %s of table %s is %s, an integer or a uuid was expected: name a column that grows as source.cursor", key.quoted, t.table.quoted, key.kind)
	case c.Own.Cursor == "" && !key.isInteger() && c.Archive != "":
		f.add("the primary key %s of table %s is a uuid, and an archive is kept by integers: leave archive.table out, or name a column that grows as source.cursor", key.quoted, t.table.quoted)
	}
	if c.Own.Cursor != "" {
		switch cursor := t.column(c.Own.Cursor); {
		case cursor.name == "":
			f.add("table %s has no column %q, which source.cursor names", t.table.quoted, c.Own.Cursor)
		case !cursor.isInteger() || !cursor.unique || !cursor.notNull:
			f.add("column %s of table %s, which source.cursor names, is %s; an integer that is unique and not null was expected", cursor.quoted, t.table.quoted, cursor.kind)
		}
	}
	switch group := t.column("group_id"); {
	case group.name == "":
		f.add("table %s has no column group_id: ALTER TABLE %s ADD COLUMN group_id uuid", t.table.quoted, t.table.quoted)
	case group.oid != oidUUID || group.notNull:
		f.add("column group_id of table %s is %s, a uuid that may be NULL was expected", t.table.quoted, group.kind)
	}
}
