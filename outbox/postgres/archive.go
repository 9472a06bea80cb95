package postgres

import (
	"context"
	"fmt"
	"strings"
	"text/template"

	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"

	_ "embed"

	"github.com/jackc/pgx/v5"
)

// archiveSQL ends a statement whose WITH deletes what was delivered. An event can be
// there already: a restored buffer delivers it again under the group_id it had.
const archiveSQL = `
RETURNING id, topic, key, payload, headers, created_at)
INSERT INTO outbox_archive (id, topic, key, payload, headers, created_at, group_id)
SELECT id, topic, key, payload, headers, created_at, $1::uuid FROM gone
ON CONFLICT (id, group_id) DO NOTHING`

//go:embed schema/archive/archive.sql
var archiveDDL string

var archiveTemplate = template.Must(template.New("archive").Parse(archiveDDL))

// payloadTypeSQL is how the buffer keeps a payload, and whether the archive is there.
const payloadTypeSQL = `
SELECT format_type(atttypid, atttypmod), to_regclass($2) IS NOT NULL
FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = 'payload' AND NOT attisdropped`

// makeArchive makes the archive's table, if there is to be one and is none.
func makeArchive(ctx context.Context, tx pgx.Tx, c SchemaConfig) (made bool, err error) {
	if c.Archive == "" {
		return false, nil
	}
	names := c.names()
	name := pg.Ident(archiveName(c.Archive, c.own()))
	var payload string
	var there bool
	if c.Own { // what is projected is kept as dead letters keep it
		names["Events"] = names["DeadLetters"]
	}
	if err := tx.QueryRow(ctx, payloadTypeSQL, names["Events"], name).Scan(&payload, &there); err != nil || there {
		return false, err
	}
	var ddl strings.Builder
	if err := archiveTemplate.Execute(&ddl, map[string]string{"Archive": name, "Payload": payload}); err != nil {
		return false, err
	}
	if _, err := tx.Exec(ctx, ddl.String(), pgx.QueryExecModeSimpleProtocol); err != nil {
		return false, fmt.Errorf("making the archive: %w", err)
	}
	return true, nil
}

// archiveName parts the name of an archive, which is beside the ledger when it does
// not say where.
func archiveName(archive, own string) (schema, table string) {
	if schema, table = pg.SplitTable(archive); schema == "" {
		schema = own
	}
	return schema, table
}

// archiveColumns come with relay migrate alone, so none has a default worth naming.
func archiveColumns(payload string) []string {
	return []string{
		"id bigint NOT NULL",
		"topic text NOT NULL",
		"key text",
		"payload " + payload + " NOT NULL",
		"headers json",
		"created_at timestamptz NOT NULL",
		"group_id uuid NOT NULL",
		"archived_at timestamptz NOT NULL DEFAULT clock_timestamp()",
	}
}

// archiveKeySQL tells whether an event cannot be in the archive twice under one
// group_id; else no statement of ours would do.
const archiveKeySQL = `
SELECT count(*) > 0 FROM pg_index i
WHERE indrelid = to_regclass($1) AND indisunique AND indisvalid AND indpred IS NULL AND indnatts = 2
  AND (SELECT array_agg(attname::text ORDER BY attname) FROM pg_attribute
       WHERE attrelid = i.indrelid AND attnum = ANY (i.indkey)) = '{group_id,id}'`

// checkArchive returns the archive's quoted name, "" when there is to be none.
func (b *Buffer) checkArchive(ctx context.Context, own string, events catalog.Table, missing *catalog.Findings) (string, error) {
	if b.config.Archive == "" {
		return "", nil
	}
	schema, name := archiveName(b.config.Archive, own)
	archive, err := catalog.Find(ctx, b.db, schema, name)
	if err != nil {
		return "", err
	}
	payload := "jsonb"
	if events.PayloadOID == pg.OIDBytea {
		payload = "bytea"
	}
	before := len(*missing)
	// ON CONFLICT reads what it compares.
	missing.AddMissing(archive, archiveColumns(payload), "SELECT", "INSERT")
	if !archive.Exists || len(*missing) > before {
		return archive.Quoted, nil
	}
	return archive.Quoted, b.db.RoundTrip(ctx, []pg.Step{pg.ReadTx(b.db.StatementTimeout), {SQL: archiveKeySQL, Args: []string{archive.Quoted}, Row: func(v [][]byte) error {
		if !pg.ReadBool(v[0]) {
			missing.Add(fmt.Sprintf("table %s, the archive, may hold an event twice", archive.Quoted),
				fmt.Sprintf("ALTER TABLE %s ADD PRIMARY KEY (id, group_id)", archive.Quoted))
		}
		return nil
	}}})
}
