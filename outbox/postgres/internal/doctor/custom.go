package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/custom"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

const aboutCustom = "your table"

// custom adds what works in a custom table, but not as well as it could.
func (d *diagnosis) custom(ctx context.Context, events catalog.Table) {
	if d.state == nil {
		return
	}
	if !events.CanInsert && d.state.Custom.Marks() == nil {
		d.warn(aboutCustom, "role "+events.Role+" may not INSERT into table "+events.Quoted+"; only relay dead replay needs it",
			"GRANT INSERT ON "+events.Quoted+" TO "+pg.Quote(events.Role))
	}
	if d.state.Custom.Numbered() {
		d.numberKey(ctx, events)
	} else {
		d.uuidKey(ctx, events)
	}
	d.children(ctx, events)
	d.unclaimedDeletes(ctx, events)
	d.conditional(ctx, events)
	d.marks(ctx, events)
	d.triggers(ctx, events)
	d.ages(ctx, events)
	d.projectedRows(ctx, events)
	d.ok("search_path", "projections run with "+d.state.Custom.Path()+"; nobody else may create what they call, or owns it")
	d.unsent(events)
	if !d.state.Tables.Conditional {
		d.sentBefore(ctx, events)
	}
	d.early(ctx, events)
	d.postponed(ctx, events)
	d.ended(ctx, events)
	d.gates(ctx, events)
	d.projection(ctx)
}

const childrenSQL = `
SELECT string_agg(inhrelid::regclass::text, ', ' ORDER BY inhrelid::regclass::text) FROM pg_inherits
WHERE inhparent = $1::regclass AND (SELECT relkind = 'r' FROM pg_class WHERE oid = inhparent) HAVING count(*) > 0`

// children adds tables that inherit from the table. Their rows are events, too.
func (d *diagnosis) children(ctx context.Context, events catalog.Table) {
	d.query(ctx, aboutCustom, childrenSQL, func(v []string) {
		d.warn(aboutCustom, v[0]+" inherits from table "+events.Quoted+": its rows are events, too, are sent without its own columns, and deleted; no key is unique in both, and two rows with one id cannot be sent",
			"name tables without children as source.table, each in a pipeline of its own; or: ALTER TABLE <child> NO INHERIT "+events.Quoted)
	}, events.Quoted)
}

// A claim updates each row of a table whose key is no number, so those that are deleted without an update were not claimed.
const unclaimedDeletesSQL = `
SELECT n_tup_ins::text, (n_tup_del - n_tup_upd)::text FROM pg_stat_all_tables
WHERE relid = $1::regclass AND n_tup_del - n_tup_upd >= 5 AND 2 * (n_tup_del - n_tup_upd) >= n_tup_ins`

// unclaimedDeletes adds that most rows are deleted before a relay claims them, as by Debezium's Quarkus extension.
func (d *diagnosis) unclaimedDeletes(ctx context.Context, events catalog.Table) {
	if d.state.Custom.Numbered() || d.state.Custom.Marks() != nil || d.state.Custom.Where() != "" {
		return
	}
	d.query(ctx, aboutCustom, unclaimedDeletesSQL, func(v []string) {
		d.warn(aboutCustom, "of "+v[0]+" rows that were inserted into table "+events.Quoted+", "+v[1]+" were deleted before a relay had claimed them, so they were not sent",
			"find what deletes them; Debezium's Quarkus extension does, unless quarkus.debezium-outbox.remove-after-insert=false")
	}, events.Quoted)
}

// sentBefore adds rows that look as if a loop had sent them, among some of those that wait.
func (d *diagnosis) sentBefore(ctx context.Context, events catalog.Table) {
	for _, c := range events.Columns {
		oid, named := events.OID(c), buffer.LooksMark(c)
		if !named && (!isText(oid) || !buffer.MayMark(c) || d.state.Custom.Excepted(c)) {
			continue
		}
		condition, unmarked, counted := pg.Quote(c)+" IS NOT NULL", pg.Quote(c)+" IS NULL", ""
		if oid == pg.OIDTimestamptz || oid == pg.OIDTimestamp || oid == oidDate {
			counted = " AND NOT (" + alwaysSetSQL(events.Quoted, c) + ")"
		} else {
			condition = "lower(" + pg.Quote(c) + "::text) IN (" + buffer.DoneValues + ")"
			unmarked = "(" + condition + ") IS NOT TRUE"
		}
		d.query(ctx, aboutCustom, "SELECT count(*)::text FROM (SELECT "+pg.Quote(c)+" FROM "+events.Quoted+" WHERE group_id IS NULL LIMIT 1000) waiting WHERE "+condition+counted, func(v []string) {
			if v[0] != "0" {
				f := projection.Marked(v[0], events.Quoted, condition, unmarked)
				if !named {
					f.Fix += projection.NoMark(c)
				}
				d.findings = append(d.findings, f)
			}
		})
	}
}

// isText reports whether a column of the type may hold words, such as an enum.
func isText(oid uint32) bool {
	return oid == pg.OIDText || oid == pg.OIDVarchar || oid == pg.OIDBpchar || oid >= firstUserOID
}

const oidBool, oidDate, oidTime, oidInterval = 16, 1082, 1083, 1186

// timeOfDay returns the column of a table that holds a time of day; "" unless there is one alone.
func timeOfDay(events catalog.Table) (found string) {
	for _, c := range events.Columns {
		switch {
		case events.OID(c) != oidTime:
		case found != "":
			return ""
		default:
			found = c
		}
	}
	return found
}

// firstUserOID is the first one of types that are not the server's own, such as enums.
const firstUserOID = 16384

// alwaysSetSQL is whether a column has a value before a row is sent: it is NOT NULL or has a DEFAULT.
func alwaysSetSQL(table, column string) string {
	return "SELECT attnotnull OR atthasdef FROM pg_catalog.pg_attribute WHERE attrelid = " + pg.Literal(table) + "::regclass AND attname = " + pg.Literal(column)
}

// ended adds rows that look as if they had been given up or withdrawn, among some of those that wait.
func (d *diagnosis) ended(ctx context.Context, events catalog.Table) {
	for _, c := range events.Columns {
		if strings.Contains(strings.ToLower(d.state.Custom.Where()), strings.ToLower(c)) {
			continue
		}
		condition, except := pg.Quote(c)+" IS NULL", ""
		counted := condition + " OR (" + alwaysSetSQL(events.Quoted, c) + ")"
		switch oid, named := events.OID(c), buffer.Suggests(c) == buffer.SuggestsEnd; {
		case named && (oid == pg.OIDTimestamptz || oid == pg.OIDTimestamp || oid == oidDate):
		case named && oid == oidBool:
			condition = pg.Quote(c) + " IS NOT TRUE"
			counted = condition
		case isText(oid) && buffer.MayEnd(c) && !d.state.Custom.Excepted(c):
			condition, except = "(lower("+pg.Quote(c)+"::text) IN ("+buffer.EndValues+")) IS NOT TRUE", projection.NoMark(c)
			counted = condition
		default:
			continue
		}
		d.countWaiting(ctx, events, pg.Quote(c), "NOT ("+counted+")", func(n string) {
			f := projection.Ended(n, events.Quoted, condition)
			f.Fix += except
			d.findings = append(d.findings, f)
		})
	}
}

// gates adds rows that look as if they may not be sent, or not yet, among some of those that wait.
func (d *diagnosis) gates(ctx context.Context, events catalog.Table) {
	var found projection.Gates
	where := d.state.Custom.Where()
	for _, c := range events.Columns {
		what, oid, name := buffer.Suggests(c), events.OID(c), pg.Quote(c)
		isVerdict := what == buffer.SuggestsVerdict
		if !buffer.LooksGate(c) || isVerdict != isText(oid) || !isVerdict && oid != oidBool || strings.Contains(strings.ToLower(where), strings.ToLower(c)) || d.state.Custom.Excepted(c) {
			continue
		}
		if isVerdict {
			name += "::text"
		}
		condition := buffer.Gate(what, name, d.state.Custom.Nullable(c))
		d.countWaiting(ctx, events, pg.Quote(c), "NOT ("+condition+") AND "+pg.Quote(c)+" IS NOT NULL", func(n string) { found.Add(c, n, condition) })
	}
	d.findings = append(d.findings, found.Findings(events.Quoted, where)...)
}

// countWaiting passes how many of the first 1000 rows that wait meet a condition on a column, unless none does.
func (d *diagnosis) countWaiting(ctx context.Context, events catalog.Table, column, condition string, found func(n string)) {
	waiting := "SELECT " + column + " FROM " + events.Quoted + " e WHERE group_id IS NULL"
	if where := d.state.Custom.Where(); where != "" {
		waiting += " AND (\n" + where + "\n)"
	}
	err := d.DB.RoundTrip(ctx, []pg.Step{pg.ReadTx(pg.BulkTimeout), {
		SQL: "SELECT count(*)::text FROM (" + waiting + " LIMIT 1000) waiting WHERE " + condition, Args: []string{uuid.Nil.String()}, UserSQL: true,
		Row: func(v [][]byte) error {
			if n := string(v[0]); n != "0" {
				found(n)
			}
			return nil
		},
	}})
	d.failed(aboutCustom, err)
}

// early adds rows that are sent before the time in a column whose name suggests that they must not be, or that is to say when they were inserted, among
// some of those that wait.
func (d *diagnosis) early(ctx context.Context, events catalog.Table) {
	where := strings.ToLower(d.state.Custom.Where())
	for _, c := range events.Columns {
		inserted, named, oid := c == d.state.Custom.Inserted(), buffer.LooksDelay(c), events.OID(c)
		switch {
		case c == d.state.Tables.AvailableAt, strings.Contains(where, strings.ToLower(c)), oid != pg.OIDTimestamptz && oid != pg.OIDTimestamp && oid != oidDate:
			continue
		case !inserted && !named && !buffer.MayDelay(c), !inserted && !named && d.state.Custom.Excepted(c):
			continue
		}
		now, fix := "statement_timestamp()", "set source.available_at: "+c
		if oid == pg.OIDTimestamp {
			zone, err := custom.ZoneOf(ctx, d.DB, events.Quoted, c)
			if d.failed(aboutCustom, err) {
				return
			}
			if alter := zone.Alter(events.Quoted, pg.Quote(c)); zone == custom.UTC {
				fix = alter + "; then " + fix
			} else {
				fix += ", after: " + alter
			}
			if now += " AT TIME ZONE " + pg.Literal(string(zone)); !named { // it may hold UTC
				now = "greatest(" + now + ", statement_timestamp() AT TIME ZONE 'UTC')"
			}
		}
		if oid == oidDate {
			fix = d.due(c, pg.Quote(c)+" <= CURRENT_DATE")
			if at := timeOfDay(events); at != "" {
				fix = d.due(c, pg.Quote(c)+" + coalesce("+pg.Quote(at)+", '00:00') <= localtimestamp")
			}
		}
		switch {
		case inserted:
			now += " + interval '5 minutes'" // the application's clock may be ahead
			fix = "if " + c + " does not say when a row was inserted, name another column as source.created_at, or none; if it delays rows: " + fix
		case !named:
			now += " + interval '1 minute'"
			fix = projection.NoDelay(c, fix)
		}
		d.countWaiting(ctx, events, pg.Quote(c), pg.Quote(c)+" > "+now, func(n string) { d.findings = append(d.findings, projection.Early(n, events.Quoted, c, fix)) })
	}
}

// postponed adds rows that are sent before the Unix time in a column, or before the time has passed that a column says.
func (d *diagnosis) postponed(ctx context.Context, events catalog.Table) {
	const now = "extract(epoch FROM statement_timestamp())"
	where := strings.ToLower(d.state.Custom.Where())
	for _, c := range events.Columns {
		unit, isSpan := buffer.LooksSpan(c)
		oid, column := events.OID(c), pg.Quote(c)
		switch isInteger := oid == pg.OIDInt8 || oid == pg.OIDInt4; {
		case strings.Contains(where, strings.ToLower(c)), d.state.Custom.Excepted(c):
		case isSpan && (isInteger || oid == pg.OIDInt2 || oid == oidInterval):
			zero, due := "0", column+" * interval '1 "+unit+"'"
			if oid == oidInterval {
				zero, due = "interval '0'", column
			}
			fix := projection.NoDelay(c, d.due(c, pg.Quote(cmp.Or(d.state.Custom.Inserted(), "created_at"))+" + "+due+" <= now()"))
			d.countWaiting(ctx, events, column, column+" > "+zero, func(n string) { d.findings = append(d.findings, projection.Span(n, events.Quoted, c, fix)) })
		case isInteger && buffer.UnixAhead(c) > 0 && (buffer.LooksDelay(c) || buffer.MayDelay(c)):
			for _, divisor := range []string{"1", "1000"} { // seconds or milliseconds, up to ten years ahead
				condition := column + "::numeric / " + divisor + " BETWEEN " + now + " + 60 AND " + now + " + " + strconv.Itoa(buffer.UnixAhead(c))
				due := "to_timestamp(" + strings.TrimSuffix(column+" / "+divisor+".0", " / 1.0") + ") <= now()"
				d.countWaiting(ctx, events, column, condition, func(n string) {
					d.findings = append(d.findings, projection.Early(n, events.Quoted, c, projection.NoDelay(c, d.due(c, due))))
				})
			}
		}
	}
}

// due is what to do to keep rows until a condition on a column holds. Rows without a value are not delayed.
func (d *diagnosis) due(column, condition string) string {
	return projection.Where(projection.OrNull(pg.Quote(column), condition, d.state.Custom.Nullable(column)), d.state.Custom.Where())
}

// ages adds whether the age of waiting events is known, and right.
func (d *diagnosis) ages(ctx context.Context, events catalog.Table) {
	if c, is := d.state.Custom.WithoutZone(); is {
		if zone, err := custom.ZoneOf(ctx, d.DB, events.Quoted, c.Name); !d.failed(aboutCustom, err) && zone != custom.UTC {
			d.warn(aboutCustom, "column "+c.Quoted+" of table "+events.Quoted+" has no time zone and is read as UTC, but the database's is "+string(zone)+
				": if rows hold local time, as now() writes it, the age of waiting events is wrong", zone.Alter(events.Quoted, c.Quoted))
		}
	}
	if !d.state.Custom.HasAges() {
		fix := "name a timestamptz column as source.created_at"
		if times := d.state.Custom.Times(); times != nil {
			fix += " if one does (" + strings.Join(times, ", ") + "?)"
		}
		// Not ADD COLUMN ... DEFAULT now(), which says of the rows that wait that they are new.
		fix += ", or: ALTER TABLE " + events.Quoted + " ADD COLUMN created_at timestamptz; ALTER TABLE " + events.Quoted + " ALTER created_at SET DEFAULT now()"
		d.warn(aboutCustom, "no column of table "+events.Quoted+" says when a row was inserted: the age of waiting events is unknown, and relay_oldest_pending_seconds is absent",
			fix)
	}
}

// unsent adds the columns that the projection drops, or returns in vain.
func (d *diagnosis) unsent(events catalog.Table) {
	if unsent := d.state.Custom.Unsent(); unsent != nil {
		d.findings = append(d.findings, projection.Unsent(unsent, events.Quoted))
	}
	if ignored := d.state.Custom.Ignored(); ignored != nil {
		d.findings = append(d.findings, projection.Unknown(ignored))
	}
}

const (
	withoutCursor = "claims have no cursor and read all dead rows while a long transaction blocks vacuum"

	sequenceSQL = `
SELECT (seqincrement > 0)::text, seqcycle::text, seqcache::text, seqincrement::text FROM pg_sequence WHERE seqrelid = $1::regclass`
)

// numberKey adds whether the integer that claims use grows.
func (d *diagnosis) numberKey(ctx context.Context, events catalog.Table) {
	number, _ := d.state.Custom.Expands()
	column := "column " + number.Quoted + " of table " + events.Quoted
	if number.OID != pg.OIDInt8 {
		last, fix := "2147483647", "ALTER TABLE "+events.Quoted+" ALTER COLUMN "+number.Quoted+" TYPE bigint"
		if number.OID == pg.OIDInt2 {
			last = "32767"
		}
		if number.Sequence != "" {
			fix += "; ALTER SEQUENCE " + number.Sequence + " AS bigint"
		}
		d.warn(aboutCustom, column+" is "+number.Type+"; inserts fail after "+last, fix)
	}
	if number.Sequence == "" {
		d.warn(aboutCustom, column+" has no sequence; "+withoutCursor,
			"ALTER TABLE "+events.Quoted+" ALTER COLUMN "+number.Quoted+" ADD GENERATED BY DEFAULT AS IDENTITY; SELECT setval(pg_get_serial_sequence("+
				pg.Literal(events.Quoted)+", "+pg.Literal(number.Name)+"), coalesce(max("+number.Quoted+"), 1)) FROM "+events.Quoted)
		return
	}
	d.query(ctx, aboutCustom, sequenceSQL, func(v []string) {
		switch grows, cycles := v[0] == "true", v[1] == "true"; {
		case !grows:
			d.warn(aboutCustom, "sequence "+number.Sequence+" counts down; "+withoutCursor,
				"ALTER SEQUENCE "+number.Sequence+" INCREMENT BY 1 MAXVALUE 9223372036854775807")
		case cycles:
			d.warn(aboutCustom, "sequence "+number.Sequence+" cycles; a used number would stand for another event",
				"ALTER SEQUENCE "+number.Sequence+" NO CYCLE")
		default:
			d.ok(aboutCustom, column+" grows by sequence "+number.Sequence+"; claims use a cursor")
			d.blocks(number.Sequence, v[2], v[3])
		}
	}, number.Sequence)
}

const unclaimedIndexSQL = `
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE i.indrelid = $1::regclass AND i.indisvalid AND pg_get_expr(i.indpred, i.indrelid) = '(group_id IS NULL)' LIMIT 1`

// uuidKey adds whether an index makes up for the missing cursor.
func (d *diagnosis) uuidKey(ctx context.Context, events catalog.Table) {
	index := ""
	if !d.query(ctx, aboutCustom, unclaimedIndexSQL, func(v []string) { index = v[0] }, events.Quoted) {
		return
	}
	key, _ := d.state.Custom.Expands()
	column, fix := "column "+key.Quoted+" of table "+events.Quoted+" is a uuid", custom.AddCursor(events.Quoted)
	if index != "" {
		d.add(buffer.LevelOK, aboutCustom, column+": claims use index "+index+"; a growing column, named as source.cursor, would be better", fix)
		return
	}
	d.warn(aboutCustom, column+": each claim reads the whole table. Add a growing column, and name it as source.cursor", fix)
}

// Bit 8 of tgtype is DELETE, 16 is UPDATE.
const triggersSQL = `
SELECT quote_ident(tgname), concat_ws(' and ', CASE WHEN tgtype & 16 <> 0 THEN 'UPDATE' END, CASE WHEN tgtype & 8 <> 0 THEN 'DELETE' END),
       CASE WHEN p.prolang > 13 AND NOT EXISTS (SELECT FROM unnest(p.proconfig) s WHERE s LIKE 'search_path=%') THEN p.oid::regprocedure::text ELSE '' END
FROM pg_trigger JOIN pg_proc p ON p.oid = tgfoid
WHERE tgrelid = $1::regclass AND NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & 24 <> 0
  AND (tgtype & 8 <> 0 OR tgattr = '' OR EXISTS (
    SELECT FROM pg_attribute WHERE attrelid = tgrelid AND attname = 'group_id' AND attnum = ANY (tgattr)))
ORDER BY 1`

// triggers adds the triggers that the relay's statements fire.
func (d *diagnosis) triggers(ctx context.Context, events catalog.Table) {
	const about = "triggers"
	d.query(ctx, about, triggersSQL, func(v []string) {
		text, fix := "trigger "+v[0]+" fires on "+v[1]+": the relay UPDATEs group_id to claim an event, and DELETEs a delivered event", ""
		if marks := d.state.Custom.Marks(); marks != nil {
			text = "trigger " + v[0] + " fires on " + v[1] + ": the relay UPDATEs group_id to claim an event, and " + strings.Join(marks, ", ") + " to mark a delivered event"
		}
		if v[2] != "" {
			text += "; the relay's search_path is " + pg.SearchPath + ", so its function must name schemas, or set its own"
			fix = "ALTER FUNCTION " + v[2] + " SET search_path = " + pg.Quote(events.Schema)
		}
		d.add(buffer.LevelOK, about, text, fix)
	}, events.Quoted)
}

const groupIndexSQL = `
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attname = 'group_id' AND a.attnum = i.indkey[0]
WHERE i.indrelid = $1::regclass AND i.indisvalid
  AND (i.indpred IS NULL OR pg_get_expr(i.indpred, i.indrelid) = '(group_id IS NOT NULL)') LIMIT 1`

// projectedRows adds how the projection finds the rows of a batch.
func (d *diagnosis) projectedRows(ctx context.Context, events catalog.Table) {
	const about = "projection"
	by, expands := d.state.Custom.Expands()
	if expands {
		d.ok(about, projection.Events+" finds the rows of a batch by column "+by.Quoted)
		return
	}
	index := ""
	if !d.query(ctx, about, groupIndexSQL, func(v []string) { index = v[0] }, events.Quoted) {
		return
	}
	if index != "" {
		d.ok(about, "WHERE group_id = $1 finds the rows of a batch by index "+index+"; with FROM "+projection.Events+" it would need no index")
		return
	}
	d.warn(about, "the projection reads all of table "+events.Quoted+" for each batch: it has no index on group_id; write FROM "+projection.Events+" e in source.project, or create the index",
		"CREATE INDEX CONCURRENTLY ON "+events.Quoted+" (group_id) WHERE group_id IS NOT NULL")
}

// projection runs the projection for the next events, and rolls back.
func (d *diagnosis) projection(ctx context.Context) {
	const (
		about = "projection"
		limit = 20
	)
	batch, err := d.Peek(ctx, limit)
	if d.failed(about, err) {
		return
	}
	if batch == nil || batch.Len() == 0 {
		d.ok(about, "the server accepts it; there are no events to run it for")
		if n, err := d.state.Custom.CountExcluded(ctx, projection.MaxExcluded+1); !d.failed("source.where", err) && n > 0 {
			d.findings = append(d.findings, projection.Excluded(n, d.state.Tables.Events, d.state.Custom.Where()))
		}
		return
	}
	if errors.Is(batch.ProjectErr, buffer.ErrDatabaseUnavailable) {
		d.failed(about, batch.ProjectErr)
		return
	}
	cause, next := batch.ProjectErr, "of "+nextEvents(batch.Len())
	var missing, rejected []string
	for i := range batch.Rejected {
		switch r := &batch.Rejected[i]; {
		case batch.ProjectErr != nil: // the cause of all rejections
		case errors.Is(r.Err, buffer.ErrNotProjected):
			missing = append(missing, r.Event.Identity())
		default:
			if rejected = append(rejected, r.Event.Identity()); cause == nil {
				cause = r.Err
			}
		}
	}
	switch {
	case len(rejected) > 0:
		d.problem(about, fmt.Sprintf("%s, %d could not be sent (%s): %v", next, len(rejected), strings.Join(rejected, ", "), cause), "correct source.project")
	case cause != nil:
		d.problem(about, next+": "+cause.Error(), "correct source.project")
	case len(missing) > 0:
		d.warn(about, fmt.Sprintf("%s it returns no row for %d, which would be buried as %q: %s", next, len(missing), buffer.ErrNotProjected, strings.Join(missing, ", ")),
			"check the joins in source.project; if their parents are gone, this is as intended")
	case batch.Len() == 1:
		d.ok(about, "it returns a row for the next event")
	default:
		d.ok(about, "it returns a row for each of "+nextEvents(batch.Len()))
	}
}

func nextEvents(n int) string {
	if n == 1 {
		return "the next event"
	}
	return fmt.Sprintf("the next %d events", n)
}
