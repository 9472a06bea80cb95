package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// A projection says WHERE group_id = ?, and without an index on that column it walks over
// all that waits. So it runs with the table in the shadow of a common table expression of
// the same name, which holds what lies between the batch's first id and its last.
//
// It must mean the same. What is read of the table by another name, main.x or through a
// view, is the table as it is, and any other reading has to be of this batch's group_id
// alone. SQLite itself says whether it is: see sightOf.

// sight is what a projection sees of the table.
type sight int32

const (
	unknown   sight = iota
	more            // more than the batch: it must have the table as it is
	elsewhere       // no table of that name, but what another name stands for
	batchOnly       // the batch's events alone, by the table's bare name
)

// rowids are names of the key that no column list has. See https://sqlite.org/rowidtable.html.
var rowids = []string{"rowid", "oid", "_rowid_"}

// shadow is the common table expression that hides the table from the projection. Of what
// lies between the batch's ids the projection itself takes those with its group_id: without
// that there is no shadow. The ids stand in the text: the only parameter is the
// projection's.
func (b *Buffer) shadow(s *shape, batch *buffer.Lease) string {
	project := strings.ToLower(b.config.Own.Project)
	id, table := quote(b.config.Own.ID), quote(b.config.Table)
	var names, values []string
	for _, name := range s.all {
		names, values = append(names, quote(name)), append(values, quote(name))
	}
	for _, name := range rowids {
		if strings.Contains(project, name) && !s.has(name) {
			names, values = append(names, name), append(values, id)
		}
	}
	return fmt.Sprintf("WITH %s (%s) AS NOT MATERIALIZED (SELECT %s FROM main.%s WHERE %s BETWEEN %d AND %d)\n",
		table, strings.Join(names, ", "), strings.Join(values, ", "), table, id, batch.FirstID, batch.LastID)
}

// has tells whether the table has a column of that name.
func (s *shape) has(name string) bool {
	for _, column := range s.all {
		if strings.EqualFold(column, name) {
			return true
		}
	}
	return false
}

// projecting is the statement that projects the batch.
func (b *Buffer) projecting(ctx context.Context, tx transaction, batch *buffer.Lease) (string, error) {
	stamp := tx.shape.stamp(batch.GroupID)
	columns, err := b.projected(ctx, tx, stamp)
	if err != nil {
		return "", err
	}
	plain := columns.statement(b.config.Own.Project)
	hidden := b.shadow(tx.shape, batch) + plain
	if sees := sight(tx.shape.sees.Load()); sees == unknown {
		// What could not be found out is asked again for the next batch.
		if sees, err = b.sightOf(ctx, tx.shape, plain, hidden, stamp); err == nil {
			tx.shape.sees.Store(int32(sees))
		}
	}
	if sight(tx.shape.sees.Load()) == batchOnly {
		return hidden, nil
	}
	return plain, nil
}

const bareTableSQL = `
SELECT coalesce((SELECT rootpage FROM temp.sqlite_schema WHERE type = 'table'), 0),
       coalesce((SELECT rootpage FROM temp.sqlite_schema WHERE type = 'index'), 0)`

// sightOf asks SQLite. A temporary table takes the place of the user's, with its columns,
// none of its constraints and an index on group_id. If the program that SQLite makes of the
// projection then reads that table by this index alone, and there only what equals the
// parameter, SQLite has proved that the projection depends on nothing else of the table.
// That the shadow takes the same places is a matter of names, by which both go before the
// user's table.
//
// Nothing is run of the projection, and the connection is closed.
func (b *Buffer) sightOf(ctx context.Context, s *shape, plain, hidden string, stamp any) (sees sight, err error) {
	// An index that SQLite would make for itself takes a walk over the table.
	db, err := openWith(b.file, "rw", "temp_store(MEMORY)", "automatic_index(OFF)")
	if err != nil {
		return unknown, err
	}
	defer db.Close()
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return unknown, err
	}
	defer tx.Rollback() //nolint:errcheck // what is temporary goes with the connection
	var version int64
	if err := tx.QueryRowContext(ctx, schemaVersionSQL).Scan(&version); err != nil {
		return unknown, err
	} else if version != s.version {
		return unknown, errors.New("the schema was changed meanwhile")
	}
	ops, err := programOf(tx.QueryContext(ctx, "EXPLAIN "+hidden, stamp))
	if err != nil || ops == nil {
		return more, err
	}
	names := make([]string, 0, len(s.all))
	for _, name := range s.all {
		names = append(names, quote(name))
	}
	table := quote(b.config.Table)
	for _, statement := range []string{
		"CREATE TEMP TABLE " + table + " AS SELECT " + strings.Join(names, ", ") + " FROM main." + table + " WHERE FALSE",
		"CREATE INDEX temp.relay_group_id ON " + table + " (group_id)",
	} {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return unknown, err
		}
	}
	var stands, index int64
	if err := tx.QueryRowContext(ctx, bareTableSQL).Scan(&stands, &index); err != nil {
		return unknown, err
	}
	ops, err = programOf(tx.QueryContext(ctx, "EXPLAIN "+plain, stamp))
	if err != nil || ops == nil {
		return more, err
	}
	return ops.sees(stands, index), nil
}

// program is what SQLite makes of a statement. See https://sqlite.org/opcode.html.
type program []instruction

type instruction struct {
	op         string
	p1, p2, p3 int64
	p4         string
}

// programOf reads and closes rows of EXPLAIN. It is nil for a statement that there is no
// program for.
func programOf(rows *sql.Rows, err error) (p program, _ error) {
	if code(err) == sqlite3.SQLITE_ERROR {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			i             instruction
			addr, p5      int64
			p4, commentIs sql.NullString
		)
		if err := rows.Scan(&addr, &i.op, &i.p1, &i.p2, &i.p3, &p4, &p5, &commentIs); err != nil {
			return nil, err
		}
		i.p4 = p4.String
		p = append(p, i)
	}
	return p, rows.Err()
}

// temporary is the number of the database of temporary tables.
const temporary = 1

// sees tells from how the program reads the temporary table and its index, by their root
// pages.
func (p program) sees(table, index int64) sight {
	indexes := map[int64]bool{} // by cursor
	for _, i := range p {
		switch {
		case i.op != "OpenRead" && i.op != "ReopenIdx" || i.p3 != temporary:
		case i.p2 == table:
			indexes[i.p1] = false
		case i.p2 == index:
			indexes[i.p1] = true
		}
	}
	if len(indexes) == 0 {
		return elsewhere
	}
	for at, i := range p {
		if i.op == "OpenDup" {
			i.p1 = i.p2
		}
		isIndex, ours := indexes[i.p1]
		if !ours {
			continue
		}
		switch i.op {
		case "OpenRead", "ReopenIdx":
			if i.p3 != temporary || isIndex != (i.p2 == index) { // a number that is used twice
				return more
			}
		case "SeekGE":
			if !isIndex || !p.equals(at) {
				return more
			}
		case "Next":
			if !isIndex {
				return more
			}
		case "Rewind", "Last", "Prev", "SeekGT", "SeekLE", "SeekLT", "SeekRowid", "NotExists", "Found", "NotFound", "NoConflict",
			"Count", "OpenDup", "OpenEphemeral", "OpenAutoindex", "OpenPseudo", "OpenWrite", "SorterOpen", "VOpen":
			return more
		}
	}
	return batchOnly
}

// equals tells whether the search at is for what equals the parameter, and nothing else.
func (p program) equals(at int) bool {
	from := p[at]
	if at+1 == len(p) || from.p4 != "1" {
		return false
	}
	if to := p[at+1]; to.op != "IdxGT" || to.p1 != from.p1 || to.p3 != from.p3 || to.p4 != from.p4 {
		return false
	}
	for at--; at >= 0; at-- {
		switch i := p[at]; {
		case i.op == "Variable":
			return i.p1 == 1 && i.p2 == from.p3
		case i.op != "IsNull" && i.op != "Affinity":
			return false
		}
	}
	return false
}
