package postgres

import (
	"context"

	"github.com/outboxrelay/relay/outbox/postgres/internal/migrate"
)

// SchemaConfig says which tables Schema and Migrate make.
type SchemaConfig = migrate.Config

// Payload is the type of the payload of events.
type Payload = migrate.Payload

// The types of a payload.
const (
	PayloadJSON  = migrate.PayloadJSON
	PayloadJSONB = migrate.PayloadJSONB
	PayloadBytes = migrate.PayloadBytes
)

// Schema returns the DDL for c, ready for psql. It can be run again without harm and never drops anything.
func Schema(c SchemaConfig) (string, error) { return migrate.Schema(c) }

// Migrate creates the tables or brings them up to date, and returns the names of the migrations
// that it applied, none if there was nothing to do. Two at once wait for each other. It never
// drops anything. Relays work meanwhile: while another transaction holds a table that must be
// changed, Migrate tries again for two minutes; then the error names the session.
// errors.Is finds buffer.ErrNotReady if the role lacks a privilege, and the error names the GRANT.
func Migrate(ctx context.Context, url string, c SchemaConfig) ([]string, error) {
	return migrate.Migrate(ctx, url, c)
}
