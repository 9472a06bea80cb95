package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/template"

	_ "embed"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

//go:embed archive.sql
var archiveDDL string

var archiveTemplate = template.Must(template.New("archive").Parse(archiveDDL))

// payloadTypeSQL is the type of a table's payload, and whether another table exists.
const payloadTypeSQL = `
SELECT format_type(atttypid, atttypmod), to_regclass($2) IS NOT NULL
FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = 'payload' AND NOT attisdropped`

// makeArchive makes the archive if one is configured and missing.
func makeArchive(ctx context.Context, tx pgx.Tx, c Config) (made bool, err error) {
	if c.Archive == "" {
		return false, nil
	}
	archive, events := pg.Ident(archiveName(c.Archive, c.ledgerSchema())), c.events()
	if c.Custom { // projected payloads have the type that dead letters have
		events = c.ledger("outbox_dead_letters")
	}
	var (
		payload string
		exists  bool
		ddl     strings.Builder
	)
	switch err := tx.QueryRow(ctx, payloadTypeSQL, events, archive).Scan(&payload, &exists); {
	case errors.Is(err, pgx.ErrNoRows):
		return false, fmt.Errorf("making the archive: table %s has no column payload", events)
	case err != nil || exists:
		return false, err
	}
	if err := archiveTemplate.Execute(&ddl, map[string]string{"Archive": archive, "Payload": payload}); err != nil {
		return false, err
	}
	if _, err := tx.Exec(ctx, ddl.String(), pgx.QueryExecModeSimpleProtocol); err != nil {
		return false, fmt.Errorf("making the archive: %w", err)
	}
	return true, nil
}

// archiveName splits the name of an archive, which is in the ledger's schema by default.
func archiveName(archive, ledgerSchema string) (schema, table string) {
	if schema, table = pg.SplitTable(archive); schema == "" {
		schema = ledgerSchema
	}
	return schema, table
}

// archiveKeySQL reports whether the archive keeps an event once for each group_id, as the
// relay's ON CONFLICT requires.
const archiveKeySQL = `
SELECT count(*) > 0 FROM pg_index i
WHERE indrelid = to_regclass($1) AND indisunique AND indisvalid AND indpred IS NULL AND indnatts = 2
  AND (SELECT array_agg(attname::text ORDER BY attname) FROM pg_attribute
       WHERE attrelid = i.indrelid AND attnum = ANY (i.indkey)) = '{group_id,id}'`

// CheckArchive adds what is missing of the archive, whose payload has a type like "json", and
// returns its quoted name. The archive must not have jsonb if the events may have JSON that jsonb refuses: those of a
// custom table, and payloads of type json.
func CheckArchive(ctx context.Context, db *pg.DB, archive, ledgerSchema, payload string, custom bool, missing *catalog.Findings) (string, error) {
	schema, name := archiveName(archive, ledgerSchema)
	table, err := catalog.Find(ctx, db, schema, name)
	if err != nil {
		return "", err
	}
	before := len(*missing)
	missing.AddMissing(table, []string{
		"id bigint NOT NULL", "topic text NOT NULL", "key text", "payload " + payload + " NOT NULL", "headers json",
		"created_at timestamptz NOT NULL", "group_id uuid NOT NULL", "archived_at timestamptz NOT NULL DEFAULT clock_timestamp()", "routes_no bigint",
	}, "SELECT", "INSERT") // ON CONFLICT reads the columns that it compares
	if custom || payload == "json" {
		missing.AddJSONB(table, "payload", "headers")
	}
	if len(*missing) > before {
		return table.Quoted, nil
	}
	return table.Quoted, db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {SQL: archiveKeySQL, Args: []string{table.Quoted}, Row: func(v [][]byte) error {
		if !pg.ReadBool(v[0]) {
			missing.Add("the archive table "+table.Quoted+" may hold an event twice", "ALTER TABLE "+table.Quoted+" ADD PRIMARY KEY (id, group_id)")
		}
		return nil
	}}})
}
