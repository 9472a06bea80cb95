package scaffold

import (
	"github.com/outboxrelay/relay/internal/introspect"
)

// Fix says how a table that cannot hold events becomes one that can.
type Fix struct {
	// If is the condition under which SQL is right, and What it does; What may stand alone.
	If, What string
	// SQL is the statement; "" if none does it.
	SQL string
}

// FixTable returns how the table can hold events, which it cannot as it is.
func FixTable(driver string, t *introspect.Table) Fix {
	alter := "ALTER TABLE " + tableName(driver, t) + " "
	switch identifying := t.Identifying(); {
	case !t.LacksKey() && t.IsInherited:
		return Fix{What: "name a table without children"}
	case !t.LacksKey():
		return Fix{
			"if your application can call its column differently", "rename it",
			alter + "RENAME COLUMN group_id TO " + unusedName(t, "app_group_id", "old_group_id"),
		}
	case driver == "sqlite":
		return Fix{What: "recreate it with a column id INTEGER PRIMARY KEY AUTOINCREMENT"}
	case t.IsPartitioned:
		return Fix{}
	case identifying != nil && len(t.Key) == 0:
		return Fix{"if " + identifying.Name + " alone identifies a row", "make it the key", alter + "ADD PRIMARY KEY (" + identifier(identifying.Name) + ")"}
	case identifying != nil:
		return Fix{"if " + identifying.Name + " alone identifies a row", "add a constraint", alter + "ADD UNIQUE (" + identifier(identifying.Name) + ")"}
	case len(t.Key) == 0:
		return Fix{"", "add a key", alter + "ADD COLUMN " + unusedName(t, "id", "event_id", "relay_id") + " bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"}
	}
	return Fix{"", "add a column that identifies a row", alter + "ADD COLUMN " + unusedName(t, "event_id", "relay_id") + " bigint GENERATED ALWAYS AS IDENTITY UNIQUE"}
}

// unusedName is the first of the names that no column has, or the last one.
func unusedName(t *introspect.Table, names ...string) string {
	for _, name := range names {
		if t.Column(name) == nil {
			return name
		}
	}
	return names[len(names)-1]
}
