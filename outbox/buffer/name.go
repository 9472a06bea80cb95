package buffer

import "github.com/outboxrelay/relay/outbox/internal/sqlname"

// SplitTable splits the name of a table as people write it: "table" or "schema.table", each part as it is,
// case preserved, or in SQL's double quotes, in which two stand for one. schema is "" if none is given. ok is
// false if a quote is not closed, or is followed by something other than a dot.
func SplitTable(name string) (schema, table string, ok bool) {
	return sqlname.Split(name)
}

// QuoteName quotes one part of a name for SQL and SplitTable.
func QuoteName(name string) string { return sqlname.Quote(name) }
