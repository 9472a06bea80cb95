package buffer

import "strings"

// SQLiteTime returns an SQL expression for the time in a column of a table in SQLite, a quoted name, as the relay writes times; NULL if the
// column holds none. It accepts every form that SQLite does (https://sqlite.org/lang_datefunc.html), and milliseconds since 1970, which are
// widespread too.
//
// Indexes of applications contain the expression: see [SQLiteDelayedIndex]. Another text would not find them.
//
// strftime takes longer than all the rest of reading an event, and most times are in one of two forms.
func SQLiteTime(column string) string {
	glob := func(digits string) string { return "'" + strings.ReplaceAll(digits, "0", "[0-9]") + "'" }
	return "CASE WHEN length(" + column + ") = 24 AND " + column + " GLOB " + glob("0000-00-00T00:00:00.000Z") + " THEN " + column +
		" WHEN length(" + column + ") = 19 AND " + column + " GLOB " + glob("0000-00-00 00:00:00") + " THEN replace(" + column + ", ' ', 'T') || '.000Z'" +
		" ELSE strftime('%Y-%m-%dT%H:%M:%fZ', CASE WHEN typeof(" + column + ") IN ('integer', 'real') AND abs(" + column + ") > 253402300799" +
		" THEN " + column + " / 1000.0 ELSE " + column + " END, 'auto') END"
}

// SQLiteNever is the available_at of an event that is never available.
const SQLiteNever = "9999-12-31T23:59:59.999Z"

// SQLiteAvailable returns an SQL expression for the time in a column of a custom table in SQLite, a quoted name, before which an event is not
// delivered; NULL if the column is NULL. A value that is no time is [SQLiteNever], because an event that is sent too early cannot be called back.
func SQLiteAvailable(column string) string {
	return "CASE WHEN " + column + " IS NOT NULL THEN coalesce(" + SQLiteTime(column) + ", '" + SQLiteNever + "') END"
}

// SQLiteDelayedIndex returns the statement that makes the index of delayed events of a custom table in SQLite. All names are quoted.
func SQLiteDelayedIndex(index, table, column string) string {
	return "CREATE INDEX " + index + " ON " + table + " (" + SQLiteAvailable(column) + ") WHERE group_id IS NULL"
}
