package scaffold

import (
	"regexp"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/internal/introspect"
)

// text is a literal of SQL's.
func text(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// table is a table's name in SQL.
func table(driver string, t *introspect.Table) string {
	if t.Schema == "" || t.Schema == "public" {
		return ident(driver, t.Name)
	}
	return ident(driver, t.Schema) + "." + ident(driver, t.Name)
}

var plainName = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

// ident is a name in SQL, in quotes where it needs them.
func ident(driver, name string) string {
	reserved := reservedPostgres
	if driver == "sqlite" {
		reserved = reservedSQLite
	}
	if plainName.MatchString(name) && !slices.Contains(reserved, name) {
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// The words that are no names without quotes: pg_get_keywords() other than 'U', and
// https://sqlite.org/lang_keywords.html.
var (
	reservedPostgres = strings.Fields(`all analyse analyze and any array as asc asymmetric authorization between bigint binary bit
		boolean both case cast char character check coalesce collate collation column concurrently constraint create cross
		current_catalog current_date current_role current_schema current_time current_timestamp current_user dec decimal
		default deferrable desc distinct do else end except exists extract false fetch float for foreign freeze from full
		grant greatest group grouping having ilike in initially inner inout int integer intersect interval into is isnull
		join json json_array json_arrayagg json_exists json_object json_objectagg json_query json_scalar json_serialize
		json_table json_value lateral leading least left like limit localtime localtimestamp merge_action national natural
		nchar none normalize not notnull null nullif numeric offset on only or order out outer overlaps overlay placing
		position precision primary real references returning right row select session_user setof similar smallint some
		substring symmetric system_user table tablesample then time timestamp to trailing treat trim true union unique
		user using values varchar variadic verbose when where window with xmlattributes xmlconcat xmlelement xmlexists
		xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable`)
	reservedSQLite = strings.Fields(`abort action add after all alter always analyze and as asc attach autoincrement before begin
		between by cascade case cast check collate column commit conflict constraint create cross current current_date
		current_time current_timestamp database default deferrable deferred delete desc detach distinct do drop each else
		end escape except exclude exclusive exists explain fail filter first following for foreign from full generated glob
		group groups having if ignore immediate in index indexed initially inner insert instead intersect into is isnull
		join key last left like limit match materialized natural no not nothing notnull null nulls of offset on or order
		others outer over partition plan pragma preceding primary query raise range recursive references regexp reindex
		release rename replace restrict returning right rollback row rows savepoint select set table temp temporary then
		ties to transaction trigger unbounded union unique update using vacuum values view virtual when where window with
		without`)
)
