package postgres

import (
	"context"

	"github.com/outboxrelay/relay/outbox/postgres/internal/migrate"
)

// SchemaConfig says which tables Schema and Migrate make. The zero SchemaConfig is outbox_events and its ledger, on the
// search path of the role.
type SchemaConfig struct {
	// Table is the buffer table, "outbox_events" when empty; it may be "schema.table".
	Table string
	// Schema is where ledger and dead letters live; the table's when empty.
	Schema string
	// Payload is the type of the payload; PayloadJSON when empty. A table that exists keeps its type.
	Payload Payload
	// Archive is the table for delivered events, which only Migrate makes; "" for none. It may be "schema.table".
	Archive string
	// ArchiveByDay makes an archive with a partition a day, so that old events are dropped with their partition. An archive that exists stays as it is.
	ArchiveByDay bool
	// Notify adds the trigger that notifies the relay of inserts; not to a custom table. It is never dropped. Migrate does
	// not install it through a pooler, which loses notifications.
	Notify bool
	// Stamped is set if the pipeline claims by stamp, as with `order: key`. A table that Migrate makes then leaves room on its pages for the stamps
	// (fillfactor 50). A table that exists stays as it is.
	Stamped bool
	// Custom is set for a custom table, which is neither made nor changed. Schema is made if it is named and does not exist.
	Custom bool
}

func (c SchemaConfig) config() migrate.Config {
	return migrate.Config{
		Table: c.Table, Schema: c.Schema, Payload: migrate.Payload(c.Payload), Archive: c.Archive, ArchiveByDay: c.ArchiveByDay, Notify: c.Notify, Stamped: c.Stamped,
		Custom: c.Custom,
	}
}

// Payload is the type of the column payload.
type Payload string

// The types of a payload.
const (
	PayloadJSON  Payload = "json"  // json: JSON as the application wrote it
	PayloadJSONB Payload = "jsonb" // jsonb: JSON that PostgreSQL parses, and writes anew for each read
	PayloadBytes Payload = "bytes" // bytea: opaque bytes
)

// Schema returns the DDL for c, ready for psql. It can be run again without harm and never drops anything.
func Schema(c SchemaConfig) (string, error) { return migrate.Schema(c.config()) }

// Migrate creates the tables or brings those of an earlier version up to date, and returns the names of what
// it made: migrations, tables, columns as table.column, indexes; none if there was nothing to do. Two at once wait for each other. It never
// drops anything. Relays work meanwhile: while another transaction holds a table that must be
// changed, Migrate tries again for two minutes; then the error names the session. An index on a buffer that exists is made CONCURRENTLY, and has no time limit but ctx.
// errors.Is finds buffer.ErrNotReady if the role lacks a privilege, and the error names the GRANT.
func Migrate(ctx context.Context, url string, c SchemaConfig) ([]string, error) {
	return migrate.Migrate(ctx, url, c.config())
}
