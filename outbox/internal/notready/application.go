package notready

import (
	"fmt"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// MaxRows bounds how many rows of a table are counted.
const MaxRows = 1000

// Unread are the Rows of a table that cannot be counted.
const Unread = -1

// Table is one that exists under the name of the relay's own.
type Table struct {
	// Quoted is the quoted name, Name what source.table has.
	Quoted, Name string
	Columns      []string
	// Lacks are the relay's own columns that it has not.
	Lacks []string
	// Rows are at most MaxRows + 1, or Unread.
	Rows int64
	// Owned is set if Pipeline owns it: it may come from an older version of the relay.
	Owned bool
	// Also is the quoted name of another table that Pipeline owns; "" for none.
	Also, Pipeline string
}

// OfApplication reports whether the columns and rows are those of a table of the application: to add the missing columns would make the relay send its rows and delete them.
func (t *Table) OfApplication() bool {
	first, more := buffer.LacksEventColumns(t.Columns) != nil, t.More() != nil
	switch {
	case len(t.Lacks) == 0:
		return false
	case buffer.CannotBeEvents(t.Columns):
		return true
	case t.Owned: // by then it had the first columns
		return first && more
	default:
		return more || first && t.Rows != 0
	}
}

// More returns the columns that are not those of the relay's own table.
func (t *Table) More() (more []string) {
	for _, c := range t.Columns {
		if !slices.Contains(buffer.EventColumns, c) {
			more = append(more, c)
		}
	}
	return more
}

// Finding says that the table is not the relay's own.
func (t *Table) Finding() buffer.Finding {
	const named = 8
	var has []string
	switch {
	case t.Rows == 1:
		has = append(has, "1 row")
	case t.Rows > MaxRows:
		has = append(has, fmt.Sprintf("more than %d rows", MaxRows))
	case t.Rows > 0:
		has = append(has, fmt.Sprintf("%d rows", t.Rows))
	}
	if more := t.More(); len(more) > named {
		has = append(has, fmt.Sprintf("columns that are not the relay's (%s and %d more)", strings.Join(more[:named], ", "), len(more)-named))
	} else if more != nil {
		has = append(has, "columns that are not the relay's ("+strings.Join(more, ", ")+")")
	}
	f := buffer.Finding{
		Level: buffer.LevelError, Subject: "tables",
		Text: "table " + t.Quoted + " exists and is not an event table of the relay: it has no " + strings.Join(t.Lacks, ", "),
		Fix:  "if your application owns it, add source.project, as relay init --table " + t.Name + " -o other.yaml writes it; otherwise name another table as source.table",
	}
	if has != nil {
		f.Text += "; it has " + strings.Join(has, " and ")
	}
	if t.Also != "" {
		f.Text += "; pipeline " + t.Pipeline + " owns table " + t.Also
		f.Fix = "correct source.table, if " + t.Also + " is meant; " + f.Fix
	}
	return f
}

// Err returns a buffer.ErrNotReady if it is a table of the application; otherwise nil.
func (t *Table) Err(place string) error {
	if !t.OfApplication() {
		return nil
	}
	return &Error{Place: place, Missing: []buffer.Finding{t.Finding()}, Application: true}
}
