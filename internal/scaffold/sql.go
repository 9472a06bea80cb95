package scaffold

import (
	"regexp"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/internal/introspect"
)

// text is an SQL literal.
func text(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// tableName is the name of a table in SQL.
func tableName(driver string, t *introspect.Table) string {
	if driver == "sqlite" || t.Schema == "public" {
		return identifier(t.Name)
	}
	return identifier(t.Schema) + "." + identifier(t.Name)
}

// TableName is a table of a configuration, which may have a schema, as statements name it.
func TableName(table string) string {
	if schema, name, ok := strings.Cut(table, "."); ok {
		return identifier(schema) + "." + identifier(name)
	}
	return identifier(table)
}

var plainName = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

// identifier is a name in SQL, quoted if it needs quotes on PostgreSQL or SQLite.
func identifier(name string) string {
	if plainName.MatchString(name) && !slices.Contains(reserved, name) {
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// The reserved words: pg_get_keywords() except 'U', and https://sqlite.org/lang_keywords.html.
var reserved = strings.Fields(`abort action add after all alter always analyse analyze and any array as asc asymmetric attach authorization
	autoincrement before begin between bigint binary bit boolean both by cascade case cast char character check
	coalesce collate collation column commit concurrently conflict constraint create cross current
	current_catalog current_date current_role current_schema current_time current_timestamp current_user
	database dec decimal default deferrable deferred delete desc detach distinct do drop each else end escape
	except exclude exclusive exists explain extract fail false fetch filter first float following for foreign
	freeze from full generated glob grant greatest group grouping groups having if ignore ilike immediate in
	index indexed initially inner inout insert instead int integer intersect interval into is isnull join json
	json_array json_arrayagg json_exists json_object json_objectagg json_query json_scalar json_serialize
	json_table json_value key last lateral leading least left like limit localtime localtimestamp match
	materialized merge_action national natural nchar no none normalize not nothing notnull null nullif nulls
	numeric of offset on only or order others out outer over overlaps overlay partition placing plan position
	pragma preceding precision primary query raise range real recursive references regexp reindex release rename
	replace restrict returning right rollback row rows savepoint select session_user set setof similar smallint
	some substring symmetric system_user table tablesample temp temporary then ties time timestamp to trailing
	transaction treat trigger trim true unbounded union unique update user using vacuum values varchar variadic
	verbose view virtual when where window with without xmlattributes xmlconcat xmlelement xmlexists xmlforest
	xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable`)
