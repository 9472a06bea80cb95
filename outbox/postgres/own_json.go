package postgres

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// asJSON is the row e as json. It never fails: a column that may hold JSON is kept as a
// text, because json_populate_record refuses a NUL or half a surrogate pair at any depth.
func (f *ownFacts) asJSON() string {
	if !slices.ContainsFunc(f.columns, ownColumn.isText) {
		return "to_json(e)"
	}
	columns := make([]string, len(f.columns))
	for i, c := range f.columns {
		columns[i] = "e." + c.quoted
		if c.isText() {
			columns[i] += "::text AS " + c.quoted
		}
	}
	return "(SELECT to_json(r) FROM (SELECT " + strings.Join(columns, ", ") + ") r)"
}

// isText reports whether a row as JSON has the column as a text: json, and types that are
// not PostgreSQL's own. Those may contain json, or have a cast to it that cannot be undone.
func (c ownColumn) isText() bool {
	return c.oid == pg.OIDJSON || c.oid == pg.OIDJSONArray || c.oid >= pg.FirstUserOID
}

// fitsJSON reports whether a json column takes the payload. PostgreSQL's parser recurses,
// so its stack limits the depth.
func fitsJSON(payload []byte) bool {
	return utf8.Valid(payload) && json.Valid(payload) && depth(payload) <= maxDepth
}

// maxDepth is far less than the default max_stack_depth allows.
const maxDepth = 1000

// depth returns how deep arrays and objects are nested in valid JSON.
func depth(text []byte) (deepest int) {
	open, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			open++
			deepest = max(deepest, open)
		case c == ']' || c == '}':
			open--
		}
	}
	return deepest
}
