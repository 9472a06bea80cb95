package doctor

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/custom"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The partial indexes that begin with the column that claims are ordered by, and how many rows the statistics count.
const partialIndexesSQL = `
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), c.relname::text, (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = i.indrelid)::text
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = $1::regclass AND i.indisvalid AND i.indpred IS NOT NULL AND a.attname = $2
ORDER BY 1`

// conditional adds whether an index has only the rows that are events. Without one, claims that begin at the beginning, and sweeps, read all rows.
func (d *diagnosis) conditional(ctx context.Context, events catalog.Table) {
	const about = "source.where"
	where := d.state.Custom.Where()
	if where == "" {
		return
	}
	d.whereValues(ctx, about, events)
	var names, quoted []string
	small := true
	key, _ := d.state.Custom.Expands()
	if !d.query(ctx, about, partialIndexesSQL, func(v []string) {
		quoted, names, small = append(quoted, v[0]), append(names, v[1]), len(v[2]) < len("1000")
	}, events.Quoted, key.Name) {
		return
	}
	scans, ok := d.claimScans(ctx, about, events)
	if !ok {
		return
	}
	for _, scan := range scans {
		if slices.Contains(names, scan.Index) {
			d.ok(about, "a claim finds events by partial index "+scan.Index+", and reads no other rows")
			return
		}
	}
	create := func(where string) string {
		return "CREATE INDEX CONCURRENTLY ON " + events.Quoted + " (" + key.Quoted + ") WHERE " + where
	}
	fix := create(strings.Join(strings.Fields(where), " "))
	const cost = "claims and sweeps read rows that are no events, too: with a journal of millions of rows, a start takes seconds to minutes, and rows that become events later are found late"
	refused := d.cannotIndex(ctx, events, key, where)
	switch {
	case len(names) == 0 && refused != "":
		d.warn(about, "no index can have the whole condition, because of what depends on more than the row ("+refused+"), and no partial index of table "+events.Quoted+" on "+key.Quoted+" has a part of it: "+cost,
			create("<source.where without that part>"))
	case len(names) == 0:
		d.warn(about, "no partial index of table "+events.Quoted+" on "+key.Quoted+" has only events: "+cost, fix)
	case small:
		d.ok(about, "the table is small; from about a thousand rows on, claims can use partial index "+quoted[0])
	case refused != "":
		d.warn(about, "the planner does not use partial index "+quoted[0]+" for a claim, because source.where does not imply its condition, or its statistics are old: "+cost, "ANALYZE "+events.Quoted)
	default:
		d.warn(about, "the planner does not use partial index "+quoted[0]+" for a claim, because source.where does not imply its condition, or its statistics are old: "+cost,
			"ANALYZE "+events.Quoted+", or "+fix)
	}
}

// whereValues adds rows that the condition leaves out because it is NULL, and columns whose zone it takes for the session's.
func (d *diagnosis) whereValues(ctx context.Context, about string, events catalog.Table) {
	const looked = 10_000
	if n, err := d.state.Custom.CountUndecided(ctx, looked); !d.failed(about, err) && n != "0" {
		d.findings = append(d.findings, projection.Undecided(n, strconv.Itoa(looked), events.Quoted))
	}
	for _, c := range d.state.Custom.Local() {
		if zone, err := custom.ZoneOf(ctx, d.DB, events.Quoted, c); !d.failed(about, err) && zone != custom.UTC {
			d.findings = append(d.findings, projection.ZoneOfWhere(c, events.Quoted, string(zone), zone.Alter(events.Quoted, pg.Quote(c))))
		}
	}
}

// cannotIndex returns why the condition cannot be that of an index, as now() cannot; "" if it can. Only CREATE INDEX says it: it is tried on an
// empty temporary table, and rolled back.
func (d *diagnosis) cannotIndex(ctx context.Context, events catalog.Table, key custom.Column, where string) string {
	err := d.DB.RoundTrip(ctx, []pg.Step{
		pg.Begin, pg.ReadTx(d.DB.StatementTimeout),
		{SQL: "CREATE TEMPORARY TABLE relay_where (LIKE " + events.Quoted + ") ON COMMIT DROP"},
		{SQL: "CREATE INDEX ON relay_where (" + key.Quoted + ") WHERE (\n" + where + "\n)", Args: []string{uuid.Nil.String()}, UserSQL: true},
		{SQL: "ROLLBACK"},
	})
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && (pgErr.Code == pg.CodeInvalidObject || pgErr.Code == pg.CodeResultChanged) {
		return pgErr.Message
	}
	return "" // or the role may make no temporary table
}

const markCostsSQL = `
SELECT (SELECT count(*) FROM pg_index WHERE indrelid = c.oid AND indpred IS NULL)::text,
       coalesce((SELECT option_value FROM pg_options_to_table(c.reloptions) WHERE option_name = 'fillfactor'), '100')
FROM pg_class c WHERE c.oid = $1::regclass`

// marks adds what marking a row costs.
func (d *diagnosis) marks(ctx context.Context, events catalog.Table) {
	const about = "source.mark"
	marks := d.state.Custom.Marks()
	if marks == nil {
		return
	}
	d.query(ctx, about, markCostsSQL, func(v []string) {
		text, fix := "rows of table "+events.Quoted+" stay; marking one sets "+strings.Join(marks, ", ")+", and writes a new version of the row and an entry in each of its indexes that have all rows ("+v[0]+
			"); vacuum removes the old versions", ""
		if fill, err := strconv.Atoi(v[1]); err == nil && fill > enoughForStamps {
			text += "; fillfactor 50 leaves room on new pages for the claim's version, which then costs no index entry, and less in all than a delete without that room"
			fix = "ALTER TABLE " + events.Quoted + " SET (fillfactor = 50)"
		}
		d.add(buffer.LevelOK, about, text, fix)
	}, events.Quoted)
}
