package pg

import (
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// SplitTable splits a table's name; schema is "" when it is not given, and the table
// outbox_events when the name is empty.
func SplitTable(name string) (schema, table string) {
	if name == "" {
		return "", "outbox_events"
	}
	schema, table, _ = buffer.SplitTable(name) // internal/config reports what is no name
	return schema, table
}

// Ident quotes a name.
func Ident(schema, table string) string {
	if schema == "" {
		return Quote(table)
	}
	return Quote(schema) + "." + Quote(table)
}

// Literal is a text between quotes; nothing when it is empty.
func Literal(s string) string {
	if s == "" {
		return ""
	}
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}

var plainName = regexp.MustCompile(`^(outbox_[a-z_]+|public)$`)

// Quote quotes one identifier. The relay's own names stay as people write them; any other
// could be a reserved word.
func Quote(name string) string {
	if plainName.MatchString(name) {
		return name
	}
	return pgx.Identifier{name}.Sanitize()
}
