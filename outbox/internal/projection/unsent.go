package projection

import (
	"strconv"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Unsent is the finding about columns that a projection drops.
func Unsent(columns []string, table string) buffer.Finding {
	list := strings.Join(columns, ", ")
	return buffer.Finding{
		Level: buffer.LevelWarning, Subject: "projection", Text: "it does not send " + list + lost(table),
		Fix: "add them to source.project, or a comment there: -- not sent: " + list,
	}
}

// Ignored returns the columns of a projection that are not known; see [buffer.CustomTable.Ignored].
func Ignored(c buffer.CustomTable, returned, columns []string, same func(a, b string) bool) []buffer.IgnoredColumn {
	return c.Ignored(returned, columns, Names[:], same)
}

// Unknown is the finding about columns that are not known.
func Unknown(ignored []buffer.IgnoredColumn) buffer.Finding {
	texts, names := make([]string, len(ignored)), make([]string, len(ignored))
	for i, c := range ignored {
		texts[i], names[i] = c.String(), c.Name
	}
	column, pronoun := "columns", "them"
	if len(ignored) == 1 {
		column, pronoun = "column", "it"
	}
	return buffer.Finding{
		Level: buffer.LevelWarning, Subject: "projection",
		Text: "source.project returns unknown " + column + " " + strings.Join(texts, ", ") + ", and the relay does not send " + pronoun + "; expected " +
			strings.Join(Names[:columns-1], ", ") + " or " + Names[columns-1],
		Fix: "put " + pronoun + " into payload or headers, or remove " + pronoun + "; if the projection needs " + pronoun + ", add a comment there: -- not sent: " + strings.Join(names, ", "),
	}
}

// UnsentEvents is the finding about columns that the relay's own table does not have.
func UnsentEvents(columns []string, table, name string) buffer.Finding {
	return buffer.Finding{
		Level: buffer.LevelWarning, Subject: "columns",
		Text: "without source.project the relay does not send " + strings.Join(columns, ", ") + lost(table),
		Fix:  "make it a custom table, with the source.project that relay init --table " + name + " -o other.yaml writes; or drop the columns",
	}
}

// Marked is the finding about rows that wait and look as if a loop had sent them: those for which a condition holds. unmarked is the condition for the others.
func Marked(rows, table, condition, unmarked string) buffer.Finding {
	return buffer.Finding{
		Level: buffer.LevelWarning, Subject: "rows", Text: "rows of table " + table + " wait that look as if a loop had sent them before (" + rows + " of the first 1000: " + condition + "); the relay would send them again",
		Fix: "if so, set source.where: " + unmarked + ", done: mark and mark, and the rows stay (docs/migrating.md#a-loop-that-marks-rows); or, if nobody needs them: DELETE FROM " + table + " WHERE group_id IS NULL AND " + condition,
	}
}

// NoMark is what to do about a column that does not mark rows although its values look like it.
func NoMark(column string) string {
	return "; if " + column + " says something else, add a comment to source.project: -- no mark: " + column
}

// NoDelay is what to do about a column that may delay rows by its values: fix, if it does.
func NoDelay(column, fix string) string {
	return "if it does not delay rows, add a comment to source.project: -- no delay: " + column + "; if it does: " + fix
}

// Where is what to do to keep rows until a condition holds. where is the present source.where; "" for none.
func Where(condition, where string) string {
	if where != "" {
		return "add to source.where: AND (" + condition + ")"
	}
	return "name the condition as source.where, such as " + condition
}

// OrNull is a condition on a column in SQL that rows meet, too, for which the column is NULL, if it can be.
func OrNull(column, condition string, nullable bool) string {
	if !nullable {
		return condition
	}
	return column + " IS NULL OR " + condition
}

// Undecided is the finding about rows for which source.where is neither true nor false: rows of the last looked ones.
func Undecided(rows, looked, table string) buffer.Finding {
	return buffer.Finding{
		Level: buffer.LevelWarning, Subject: "source.where", Text: "for rows of table " + table + " the condition is NULL (" + rows + " of the last " + looked + "), because a column that it compares is NULL: such a row is no event, and stays",
		Fix: "if they are events, add to the comparison: OR <column> IS NULL; otherwise: AND <column> IS NOT NULL",
	}
}

// MaxExcluded is up to how many rows that are no events are counted.
const MaxExcluded = 1000

// Excluded is the finding about rows that source.where excludes while no event is due: more than [MaxExcluded], if there are as many. It is how a table looks
// whose events are all sent, and how it looks with a wrong condition.
func Excluded(rows int, table, where string) buffer.Finding {
	count := strconv.Itoa(rows) + " rows"
	switch {
	case rows > MaxExcluded:
		count = "more than " + strconv.Itoa(MaxExcluded) + " rows"
	case rows == 1:
		count = "1 row"
	}
	return buffer.Finding{
		Level: buffer.LevelOK, Subject: "source.where",
		Text: "no event is due; the condition excludes " + count + " of table " + table + ": " + strings.Join(strings.Fields(where), " "),
	}
}

// ZoneOfWhere is the finding about a column without time zone that source.where compares with the time in a zone.
func ZoneOfWhere(column, table, zone, alter string) buffer.Finding {
	return buffer.Finding{
		Level: buffer.LevelWarning, Subject: "source.where", Text: "column " + column + " of table " + table + " has no time zone, and source.where compares it with the time in the database's zone, " + zone +
			": if rows hold UTC, as many frameworks write it, they are sent hours too early or too late",
		Fix: "compare it with now() AT TIME ZONE 'UTC', or, if they hold local time, with now() AT TIME ZONE '" + strings.ReplaceAll(zone, "'", "''") + "'; or: " + alter,
	}
}

// Span is the finding about rows that wait and would be sent before as much time is over as a column says.
func Span(rows, table, column, fix string) buffer.Finding {
	return buffer.Finding{
		Level: buffer.LevelWarning, Subject: "rows", Text: "rows of table " + table + " wait whose " + column + " is greater than 0 (" + rows + " of the first 1000): they are sent at once", Fix: fix,
	}
}

// Ended is the finding about rows that wait and look as if they had been given up or withdrawn: those for which a condition does not hold.
func Ended(rows, table, condition string) buffer.Finding {
	return buffer.Finding{
		Level: buffer.LevelWarning, Subject: "rows", Text: "rows of table " + table + " wait that look as if they had been given up or withdrawn (" + rows + " of the first 1000: NOT " + condition + "); the relay sends them",
		Fix: "if they are no events, add to source.where: " + condition,
	}
}

// Gates collects columns of rows that wait and look as if they may not be sent.
type Gates struct{ counts, conditions, columns []string }

// Add adds a column: rows of the first 1000 do not meet a condition.
func (g *Gates) Add(column, rows, condition string) {
	g.counts, g.conditions, g.columns = append(g.counts, column+" ("+rows+")"), append(g.conditions, condition), append(g.columns, column)
}

// Findings returns the one about all columns; nil without columns. where is the present source.where; "" for none.
func (g *Gates) Findings(table, where string) []buffer.Finding {
	if g.columns == nil {
		return nil
	}
	fix := "set source.where: "
	if where != "" {
		fix = "add to source.where: AND "
	}
	return []buffer.Finding{{
		Level: buffer.LevelWarning, Subject: "rows", Text: "rows of table " + table + " wait that look as if they may not be sent, by " + strings.Join(g.counts, ", ") + " of the first 1000; the relay sends them",
		Fix: "if they are no events, " + fix + strings.Join(g.conditions, " AND ") + "; otherwise add a comment to source.project: -- no mark: " + strings.Join(g.columns, ", "),
	}}
}

// Early is the finding about rows that wait and would be sent before the time in a column.
func Early(rows, table, column, fix string) buffer.Finding {
	return buffer.Finding{
		Level: buffer.LevelWarning, Subject: "rows", Text: "rows of table " + table + " wait whose " + column + " lies in the future (" + rows + " of the first 1000): they are sent at once", Fix: fix,
	}
}

func lost(table string) string { return " of table " + table + "; a delivered row is deleted" }
