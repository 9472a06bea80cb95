package sqlite

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// marks adds rows that look as if a loop had sent them, among some of those that wait.
func (c *customTable) marks(ctx context.Context, d *diagnosis, columns []string) {
	table := db.Quote(c.b.config.Table)
	for _, column := range columns {
		named := buffer.LooksMark(column)
		if !named && (!buffer.MayMark(column) || c.b.config.Custom.Excepted(column)) {
			continue
		}
		condition, unmarked, counted := db.Quote(column)+" IS NOT NULL", db.Quote(column)+" IS NULL", ""
		switch {
		case named && marksTimes.MatchString(column):
			counted = " AND NOT EXISTS (SELECT 1 FROM pragma_table_info(" + sqlText(c.b.config.Table) + ") WHERE name = " + sqlText(column) + " AND (\"notnull\" OR dflt_value IS NOT NULL))"
		case named:
			condition = "lower(CAST(" + db.Quote(column) + " AS TEXT)) IN (" + buffer.DoneValues + ")"
			unmarked = "(" + condition + ") IS NOT TRUE"
		default:
			condition = "lower(" + db.Quote(column) + ") IN (" + buffer.DoneValues + ")"
			unmarked = "(" + condition + ") IS NOT TRUE"
		}
		c.countWaiting(ctx, d, column, condition+counted, func(n string) {
			f := projection.Marked(n, table, condition, unmarked)
			if !named {
				f.Fix += projection.NoMark(column)
			}
			d.findings = append(d.findings, f)
		})
	}
}

// marksTimes matches names of marks that hold times.
var marksTimes = regexp.MustCompile(`(?i)(at|on|date|time|timestamp|ts|utc)$|^date`)

func sqlText(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// excludes reports whether source.where names a column, which then says which rows are events.
func (c *customTable) excludes(column string) bool {
	return strings.Contains(strings.ToLower(c.b.config.Custom.Where), strings.ToLower(column))
}

// countWaiting passes how many of the first 1000 rows that wait meet a condition on a column, unless none does.
func (c *customTable) countWaiting(ctx context.Context, d *diagnosis, column, condition string, found func(n string)) {
	waiting := "SELECT " + db.Quote(column) + " FROM " + db.Quote(c.b.config.Table) + " WHERE group_id IS NULL"
	if where := c.b.config.Custom.Where; where != "" {
		waiting += " AND (\n" + where + "\n)"
	}
	var n int
	err := c.b.db.QueryRowContext(ctx, "SELECT count(*) FROM ("+waiting+" LIMIT 1000) WHERE "+condition).Scan(&n)
	if !d.failed("rows", err) && n > 0 {
		found(strconv.Itoa(n))
	}
}

// ended adds rows that look as if they had been given up or withdrawn, among some of those that wait.
func (c *customTable) ended(ctx context.Context, d *diagnosis, columns []string) {
	for _, column := range columns {
		if c.excludes(column) {
			continue
		}
		name, except := db.Quote(column), ""
		condition := name + " IS NOT TRUE"
		switch named := buffer.Suggests(column) == buffer.SuggestsEnd; {
		case named && marksTimes.MatchString(column):
			condition = name + " IS NULL"
		case named:
		case buffer.MayEnd(column) && !c.b.config.Custom.Excepted(column):
			condition, except = "(lower("+name+") IN ("+buffer.EndValues+")) IS NOT TRUE", projection.NoMark(column)
		default:
			continue
		}
		c.countWaiting(ctx, d, column, "NOT ("+condition+")", func(n string) {
			f := projection.Ended(n, db.Quote(c.b.config.Table), condition)
			f.Fix += except
			d.findings = append(d.findings, f)
		})
	}
}

// gates adds rows that look as if they may not be sent, or not yet, among some of those that wait.
func (c *customTable) gates(ctx context.Context, d *diagnosis, s *shape) {
	var found projection.Gates
	for _, column := range s.columns {
		if !buffer.LooksGate(column) || c.excludes(column) || c.b.config.Custom.Excepted(column) {
			continue
		}
		what, name := buffer.Suggests(column), db.Quote(column)
		condition, typed := buffer.Gate(what, name, !slices.Contains(s.notNull, column)), " AND typeof("+name+") = 'integer'"
		if what == buffer.SuggestsVerdict {
			typed = ""
		}
		c.countWaiting(ctx, d, column, "NOT ("+condition+") AND "+name+" IS NOT NULL"+typed, func(n string) { found.Add(column, n, condition) })
	}
	d.findings = append(d.findings, found.Findings(db.Quote(c.b.config.Table), c.b.config.Custom.Where)...)
}

// early adds rows that are sent before the time in a column whose name or values suggest that they must not be, or that is to say when they were
// inserted, among some of those that wait.
func (c *customTable) early(ctx context.Context, d *diagnosis, s *shape) {
	for _, column := range s.columns {
		inserted, named := c.isInserted(column), buffer.LooksDelay(column)
		if c.excludes(column) || c.isAvailable(column) || !inserted && !named && (!buffer.MayDelay(column) || c.b.config.Custom.Excepted(column)) {
			continue
		}
		name, now := db.Quote(column), "julianday('now')"
		fix := c.delayBy(s, column, "julianday("+name+") <= julianday('now')")
		switch {
		case inserted: // the application's clock may be ahead, and it may write local time
			now = "max(" + now + ", julianday('now', 'localtime')) + 5.0 / 1440"
			fix = "if " + column + " does not say when a row was inserted, name another column as source.created_at, or none; if it delays rows: " + fix
		case !named:
			now = "max(" + now + ", julianday('now', 'localtime')) + 1.0 / 1440"
			fix = projection.NoDelay(column, fix)
		}
		c.countWaiting(ctx, d, column, "typeof("+name+") = 'text' AND "+name+" GLOB '[0-9][0-9][0-9][0-9]-*' AND julianday("+name+") > "+now, func(n string) {
			d.findings = append(d.findings, projection.Early(n, db.Quote(c.b.config.Table), column, fix))
		})
	}
}

// due is what to do to keep rows until a condition on a column holds. Rows without a value are not delayed.
func (c *customTable) due(s *shape, column, condition string) string {
	return projection.Where(projection.OrNull(db.Quote(column), condition, !slices.Contains(s.notNull, column)), c.b.config.Custom.Where)
}

// delayBy is what to do to keep rows until the time in a column.
func (c *customTable) delayBy(s *shape, column, condition string) string {
	if c.b.config.Custom.AvailableAt != "" {
		return c.due(s, column, condition)
	}
	return "set source.available_at: " + column + " (relay doctor then names the index that it needs)"
}

// isAvailable reports whether the column delays events.
func (c *customTable) isAvailable(column string) bool {
	return strings.EqualFold(column, c.b.config.Custom.AvailableAt)
}

// neverAvailable adds events whose available_at is no time.
func (c *customTable) neverAvailable(ctx context.Context, d *diagnosis) {
	const about = "delayed events"
	var n int
	column := c.b.config.Custom.AvailableAt
	if column == "" {
		return
	}
	err := c.b.begin(ctx, c.b.db, readOnly, func(tx transaction) error { return tx.row(ctx, neverAvailableSQL, buffer.SQLiteNever).Scan(&n) })
	if !d.failed(about, err) && n > 0 {
		d.problem(about, "events whose "+column+" is no time: "+strconv.Itoa(n)+"; they wait for ever", "set it to a time in any form of SQLite's, or to milliseconds since 1970; NULL sends the event at once")
	}
}

const neverAvailableSQL = `
SELECT count(*) FROM (SELECT 1 FROM outbox_events AS e WHERE e.available_at = ?1 AND e.group_id IS NULL LIMIT 1000)`

// undecided adds rows for which source.where is NULL.
func (c *customTable) undecided(ctx context.Context, d *diagnosis) {
	const looked = 10_000
	table := db.Quote(c.b.config.Table)
	var n int
	err := c.b.db.QueryRowContext(ctx, "SELECT count(*) FROM (SELECT (\n"+c.b.config.Custom.Where+"\n) AS is_event FROM "+table+" AS e WHERE e.group_id IS NULL ORDER BY e.rowid DESC LIMIT ?1) WHERE is_event IS NULL", looked).Scan(&n)
	if !d.failed("rows", err) && n > 0 {
		d.findings = append(d.findings, projection.Undecided(strconv.Itoa(n), strconv.Itoa(looked), table))
	}
}

// excluded adds how many rows source.where excludes, if no event is due.
func (c *customTable) excluded(ctx context.Context, d *diagnosis) {
	where := c.b.config.Custom.Where
	var waits bool
	err := c.b.db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM "+db.Quote(c.b.config.Table)+" AS e WHERE e.group_id IS NULL AND (\n"+where+"\n))").Scan(&waits)
	if d.failed("source.where", err) || waits {
		return
	}
	if n, err := c.b.CountExcluded(ctx, projection.MaxExcluded+1); !d.failed("source.where", err) && n > 0 {
		d.findings = append(d.findings, projection.Excluded(n, db.Quote(c.b.config.Table), where))
	}
}

// isInserted reports whether ages are measured by the column.
func (c *customTable) isInserted(column string) bool {
	return strings.EqualFold(column, cmp.Or(c.b.config.Custom.CreatedAt, "created_at"))
}

// perDay is how many of a unit are a day.
var perDay = map[string]string{"millisecond": "86400000.0", "second": "86400.0", "minute": "1440.0", "hour": "24.0", "day": "1.0"}

// postponed adds rows that are sent before the Unix time in a column, or before the time has passed that a column says.
func (c *customTable) postponed(ctx context.Context, d *diagnosis, s *shape) {
	table := db.Quote(c.b.config.Table)
	for _, column := range s.columns {
		name := db.Quote(column)
		unit, isSpan := buffer.LooksSpan(column)
		switch {
		case c.excludes(column), c.isAvailable(column), c.isInserted(column), c.b.config.Custom.Excepted(column):
		case isSpan:
			fix := projection.NoDelay(column, c.due(s, column, "julianday("+db.Quote(cmp.Or(c.b.config.Custom.CreatedAt, "created_at"))+") + "+name+" / "+perDay[unit]+" <= julianday('now')"))
			c.countWaiting(ctx, d, column, "typeof("+name+") IN ('integer', 'real') AND "+name+" > 0", func(n string) {
				d.findings = append(d.findings, projection.Span(n, table, column, fix))
			})
		case buffer.UnixAhead(column) > 0 && (buffer.LooksDelay(column) || buffer.MayDelay(column)):
			for _, divisor := range []string{"", " / 1000"} { // seconds or milliseconds, up to ten years ahead
				condition := "typeof(" + name + ") IN ('integer', 'real') AND " + name + divisor + " - CAST(strftime('%s', 'now') AS INTEGER) BETWEEN 60 AND " + strconv.Itoa(buffer.UnixAhead(column))
				fix := projection.NoDelay(column, c.delayBy(s, column, name+divisor+" <= CAST(strftime('%s', 'now') AS INTEGER)"))
				c.countWaiting(ctx, d, column, condition, func(n string) { d.findings = append(d.findings, projection.Early(n, table, column, fix)) })
			}
		}
	}
}
