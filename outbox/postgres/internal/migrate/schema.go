package migrate

import (
	"cmp"
	"embed"
	"io/fs"
	"regexp"
	"strings"
	"sync"
	"testing/fstest"
	"text/template"

	"github.com/outboxrelay/relay/outbox/postgres/internal/listen"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

//go:embed schema/*.sql
var migrationFiles embed.FS

var migrations = template.Must(template.ParseFS(migrationFiles, "schema/*.sql"))

// Payload is the type of the payload of events.
type Payload string

// The types of a payload.
const (
	PayloadJSON  Payload = "json"  // json: JSON as the application wrote it
	PayloadJSONB Payload = "jsonb" // jsonb: JSON that PostgreSQL parses, and writes anew for each read
	PayloadBytes Payload = "bytes" // bytea: opaque bytes
)

// Config says which tables Schema and Migrate make.
type Config struct {
	// Table is the buffer table, "outbox_events" when empty; it may be "schema.table".
	Table string
	// Schema is where ledger and dead letters live; the table's when empty.
	Schema string
	// Payload is the type of the payload; PayloadJSON when empty. A table that exists keeps its type.
	Payload Payload
	// Archive is the table for delivered events, which only Migrate makes; "" for none. It may be "schema.table".
	Archive string
	// ArchiveByDay makes an archive with a partition a day. An archive that exists stays as it is.
	ArchiveByDay bool
	// Notify adds the trigger that notifies the relay of inserts; not to a custom table. It is never dropped. Migrate does
	// not install it through a pooler, which loses notifications.
	Notify bool
	// Stamped is set if the pipeline claims by stamp: a table that Migrate makes leaves room for the stamps.
	Stamped bool
	// Custom is set for a custom table, which is neither made nor changed. Schema is made if it
	// is named and does not exist.
	Custom bool

	// onPath is the schema that the search path gives a name without one. Migrate runs with another path.
	onPath string
}

// Schema returns the DDL for c, ready for psql. It can be run again without harm and never drops anything.
func Schema(c Config) (string, error) {
	rendered, err := render(c, "")
	if err != nil {
		return "", err
	}
	names, err := fs.Glob(rendered, "*.sql")
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, name := range names {
		text, err := fs.ReadFile(rendered, name)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "-- +goose") {
				out.WriteString(line)
			}
		}
	}
	if c.notifies() {
		ddl, err := listen.TriggerDDL(c.events(), c.notifyFunction())
		if err != nil {
			return "", err
		}
		out.WriteString("\n" + ddl)
	}
	return strings.TrimLeft(out.String(), "\n"), nil
}

// notifies reports whether the table gets the trigger that notifies the relay.
func (c Config) notifies() bool { return c.Notify && !c.Custom }

// notifyFunction is the quoted name of the trigger's function.
func (c Config) notifyFunction() string { return pg.Ident(c.ledgerSchema(), listen.TriggerName) }

// ledgerSchema is the schema of the relay's own tables; "" to find them by the search path.
func (c Config) ledgerSchema() string {
	schema, _ := pg.SplitTable(c.Table)
	return cmp.Or(c.Schema, schema, c.onPath)
}

// names are the placeholders of the migrations.
func (c Config) names() map[string]string {
	payload, headers, deadPayload, custom := "json", "json", "json", ""
	switch c.Payload {
	case PayloadJSONB:
		payload, headers = "jsonb", "jsonb"
	case PayloadBytes:
		payload, deadPayload = "bytea", "bytea"
	}
	if c.Custom {
		custom = "yes"
	}
	return map[string]string{
		"Events":       c.events(),
		"DelayedIndex": c.delayedIndex(),
		"Payload":      payload,
		"Headers":      headers,
		"DeadPayload":  deadPayload,
		// Ledger is a prefix, LedgerSchema the trigger's argument; without one the ledger is in the buffer's schema.
		"Ledger":       c.ledger(""),
		"LedgerSchema": pg.Literal(c.ledgerSchema()),
		"Custom":       custom,
	}
}

// events is the quoted name of the buffer table.
func (c Config) events() string { return pg.Ident(c.eventsName()) }

// eventsName is the name of the buffer table, and its schema.
func (c Config) eventsName() (schema, table string) {
	schema, table = pg.SplitTable(c.Table)
	return cmp.Or(schema, c.onPath), table
}

// delayedIndex is the quoted name of the index of delayed events. It is at most 63 bytes long, as PostgreSQL would cut it.
func (c Config) delayedIndex() string {
	const suffix = "_delayed"
	_, table := pg.SplitTable(c.Table)
	name := []rune(cmp.Or(table, "outbox_events"))
	for len(string(name)) > 63-len(suffix) {
		name = name[:len(name)-1]
	}
	return pg.Quote(string(name) + suffix)
}

// ledger is the quoted name of one of the relay's own tables.
func (c Config) ledger(name string) string {
	if schema := c.ledgerSchema(); schema != "" {
		return pg.Quote(schema) + "." + name
	}
	return name
}

// tables are the quoted names of the tables that Migrate makes.
func (c Config) tables() []string {
	all := []string{c.ledger("outbox_batches"), c.ledger("outbox_dead_letters"), c.ledger("outbox_buffers"), c.ledger("outbox_numbers"), c.ledger("outbox_rates"), c.ledger("outbox_sinks"), c.ledger("outbox_relays")}
	if c.Custom {
		return all
	}
	return append(all, c.events())
}

// render fills the names into the migrations, each of which begins with first.
func render(c Config, first string) (fs.FS, error) {
	out := fstest.MapFS{}
	for _, t := range migrations.Templates() {
		var text strings.Builder
		if err := t.Execute(&text, c.names()); err != nil {
			return nil, err
		}
		const begin = "-- +goose Up\n"
		out[t.Name()] = &fstest.MapFile{Data: []byte(strings.Replace(text.String(), begin, begin+first, 1))}
	}
	return out, nil
}

// Definition is how the schema defines a table: the columns as ALTER TABLE ADD COLUMN takes them, and names and
// values of the storage parameters.
type Definition struct {
	Columns []string
	Storage [][2]string
}

var tableDDL = regexp.MustCompile(`(?s)CREATE TABLE IF NOT EXISTS (outbox_\w+) \((.*?)\n\)(?: WITH \((.*?)\n\))?;`)

// Definitions returns the relay's tables, by their default names.
var Definitions = sync.OnceValues(func() (map[string]Definition, error) {
	ddl, err := Schema(Config{})
	all := map[string]Definition{}
	for _, table := range tableDDL.FindAllStringSubmatch(ddl, -1) {
		var d Definition
		for _, line := range definitions(table[2]) {
			if !strings.HasPrefix(line, "PRIMARY KEY") {
				d.Columns = append(d.Columns, line)
			}
		}
		for _, line := range definitions(table[3]) {
			name, value, _ := strings.Cut(line, " = ")
			d.Storage = append(d.Storage, [2]string{name, value})
		}
		all[table[1]] = d
	}
	return all, err
})

// definitions returns the lines of a list without comments, commas and extra blanks.
func definitions(list string) (lines []string) {
	for line := range strings.Lines(list) {
		line, _, _ = strings.Cut(line, "--")
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			lines = append(lines, strings.TrimSuffix(line, ","))
		}
	}
	return lines
}
