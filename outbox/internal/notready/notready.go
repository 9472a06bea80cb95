// Package notready is the error of a buffer that lacks tables, columns or privileges.
package notready

import (
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// MigrateCommand makes the relay's tables.
const MigrateCommand = "relay migrate -c relay.yaml"

// Error lists what is missing. errors.Is finds buffer.ErrNotReady, and buffer.ErrProjection if that is all.
type Error struct {
	// Place is the database or file, if the findings do not name it.
	Place string
	// Missing has Text and Fix filled.
	Missing []buffer.Finding
	// Application is set if source.table names a table of the application: nothing else was examined.
	Application bool
}

// New returns the error of what is missing; nil if nothing is.
func New(place string, missing []buffer.Finding) error {
	if len(missing) == 0 {
		return nil
	}
	return &Error{Place: place, Missing: missing}
}

func (e *Error) Error() string {
	texts := make([]string, len(e.Missing))
	for i, f := range e.Missing {
		texts[i] = f.Text + ": " + f.Fix
	}
	text := buffer.ErrNotReady.Error() + ": "
	if e.Place != "" {
		text += e.Place + ": "
	}
	return text + strings.Join(texts, "; ")
}

// Migrates returns [MigrateCommand] if it makes all that is missing, or the statements that make the schemas if these are all that is known to be missing, otherwise "", and
// whether whole tables are missing.
func (e *Error) Migrates() (command string, tables bool) {
	var schemas []string
	for _, f := range e.Missing {
		if strings.HasPrefix(f.Fix, createSchema) {
			schemas = append(schemas, f.Fix)
		}
	}
	if len(schemas) > 0 && len(schemas) == len(e.Missing) {
		return strings.Join(schemas, "; "), true
	}
	for _, f := range e.Missing {
		if f.Fix != MigrateCommand {
			return "", false
		}
		tables = tables || strings.HasSuffix(f.Text, noTable)
	}
	return MigrateCommand, tables
}

// noTable ends the text about a table that does not exist.
const noTable = " does not exist"

const createSchema = "CREATE SCHEMA "

// NoSchema is the finding about a schema that does not exist; its name is quoted.
func NoSchema(schema string) buffer.Finding {
	return buffer.Finding{Level: buffer.LevelError, Subject: "tables", Text: "schema " + schema + noTable, Fix: createSchema + schema}
}

func (e *Error) Unwrap() error { return buffer.ErrNotReady }

// Projection is the subject of what is wrong with the projection of a custom table.
const Projection = "projection"

// Is reports whether target is buffer.ErrProjection and nothing else is missing.
func (e *Error) Is(target error) bool {
	return target == buffer.ErrProjection && !slices.ContainsFunc(e.Missing, func(f buffer.Finding) bool { return f.Subject != Projection })
}

// NoTable is the finding about a buffer that does not exist. near is a table that may be meant, or ""; migrate makes only the relay's own.
func NoTable(table, near string, custom bool) buffer.Finding {
	f := buffer.Finding{Level: buffer.LevelError, Subject: "tables", Text: "table " + table + noTable, Fix: MigrateCommand}
	if custom {
		f.Text, f.Fix = "custom "+f.Text, "create it, or correct source.table"
	}
	if near != "" {
		f.Text += " (did you mean " + near + "?)"
		if !custom {
			f.Fix = "correct source.table, or, to create it: " + MigrateCommand
		}
	}
	return f
}
