package notready

import (
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Lost is a table that does not exist any more: a pipeline owned it.
type Lost struct {
	// Table is the quoted name that was looked for.
	Table, Pipeline string
	// Renamed reports whether Now is the table itself, under its new name; otherwise it is one that has the same columns, or zero.
	Renamed bool
	Now     Found
}

// Found is a table that exists.
type Found struct {
	// Quoted is its name in SQL, Source as source.table names it.
	Quoted, Source string
	// Back is the statement that gives it the name of the lost one.
	Back string
}

// Finding asks whether the table was renamed, before it says what makes an empty one. migrate makes only the relay's own.
func (l *Lost) Finding(custom bool) buffer.Finding {
	again := "to create an empty one: " + MigrateCommand
	if custom {
		again = "create it, or name another table as source.table"
	}
	f := buffer.Finding{
		Level: buffer.LevelError, Subject: "tables", Text: "table " + l.Table + " existed, and pipeline " + l.Pipeline + " owned it: was it renamed?",
		Fix: "if it was, give it its name back, or correct source.table; if it was dropped, " + again,
	}
	if l.Now == (Found{}) {
		return f
	}
	back := l.Now.Back + "; if the new name is intended, source.table: " + l.Now.Source
	if l.Renamed {
		f.Text, f.Fix = "table "+l.Table+", which pipeline "+l.Pipeline+" owns, was renamed: it is "+l.Now.Quoted+" now", back
		return f
	}
	f.Text += " " + l.Now.Quoted + " has the same columns"
	f.Fix = "if it was, " + back + "; if it was dropped, " + again
	return f
}

// Likest returns the one of some tables, which have the columns of a lost one, that it may be: the only one, otherwise the one whose name has the lost name in it. name
// returns the name of each without its schema.
func Likest(lost string, found []Found, name func(Found) string) Found {
	if len(found) == 1 {
		return found[0]
	}
	for _, f := range found {
		if strings.Contains(name(f), lost) {
			return f
		}
	}
	return Found{}
}
