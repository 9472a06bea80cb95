package migrate

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"
	"text/template"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

//go:embed archive*.sql
var archiveFiles embed.FS

var archiveTemplates = template.Must(template.ParseFS(archiveFiles, "archive*.sql"))

// payloadTypeSQL is the type of a table's payload, and whether another table exists and is partitioned by the time of delivery.
const payloadTypeSQL = `
SELECT format_type(atttypid, atttypmod), to_regclass($2) IS NOT NULL, coalesce(pg_get_partkeydef(to_regclass($2)::oid) = 'RANGE (archived_at)', false)
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
		payload       string
		exists, byDay bool
		schema, table = archiveName(c.Archive, c.ledgerSchema())
		maintain, _   = ArchiveMaintain(schema, table)
		ddl           strings.Builder
	)
	switch err := tx.QueryRow(ctx, payloadTypeSQL, events, archive).Scan(&payload, &exists, &byDay); {
	case errors.Is(err, pgx.ErrNoRows):
		return false, fmt.Errorf("making the archive: table %s has no column payload", events)
	case err != nil || exists && (!byDay || !c.ArchiveByDay): // one that exists stays as it is
		return false, err
	}
	names := map[string]string{
		"Archive": archive, "Payload": payload, "ArchiveText": pg.Literal(archive), "Maintain": maintain,
		"Default": pg.Ident(schema, table+"_default"), "SchemaText": pg.Literal(schema), "TableText": pg.Literal(table),
	}
	files := []string{"archive.sql"}
	if c.ArchiveByDay {
		files = []string{"archive_by_day.sql", "archive_maintain.sql"}
	}
	if exists {
		files = files[1:]
	}
	for _, file := range files {
		if err := archiveTemplates.ExecuteTemplate(&ddl, file, names); err != nil {
			return false, err
		}
	}
	if c.ArchiveByDay {
		ddl.WriteString("SELECT " + maintain + "();\n")
	}
	if _, err := tx.Exec(ctx, ddl.String(), pgx.QueryExecModeSimpleProtocol); err != nil {
		return false, fmt.Errorf("making the archive: %w", err)
	}
	return !exists, nil
}

// maxArchiveName is how many bytes the name of an archive with partitions may have: theirs are longer, and PostgreSQL would cut them.
const maxArchiveName = 63 - len("_p20060102")

// ArchiveMaintain returns the quoted name of the function that makes and drops the partitions of an archive, and why there can be none; "" if there can.
func ArchiveMaintain(schema, table string) (function, why string) {
	if len(table) > maxArchiveName {
		why = fmt.Sprintf("archive.table is %q; expected at most %d bytes with archive.partition, because the names of partitions are longer", table, maxArchiveName)
	}
	return pg.Ident(schema, table+"_maintain"), why
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
WHERE indrelid = to_regclass($1) AND indisunique AND indisvalid AND indpred IS NULL
  AND (SELECT array_agg(attname::text ORDER BY attname) FROM pg_attribute
       WHERE attrelid = i.indrelid AND attnum = ANY (i.indkey)) = $2::text[]`

// archiveColumns are the columns of an archive whose payload has a type like "json".
func archiveColumns(payload string) []string {
	return []string{
		"id bigint NOT NULL", "topic text NOT NULL", "key text", "payload " + payload + " NOT NULL", "headers json",
		"created_at timestamptz NOT NULL", "group_id uuid NOT NULL", "archived_at timestamptz NOT NULL DEFAULT clock_timestamp()", "routes_no bigint",
	}
}

// addsToArchive reports whether Migrate adds a column to an archive: one that the first version had not.
func addsToArchive(column string) bool { return strings.HasPrefix(column, "routes_no ") }

// CheckArchive adds what is missing of the archive, whose payload has a type like "json", and
// returns it. The archive must not have jsonb if the events may have JSON that jsonb refuses: those of a
// custom table, and payloads of type json.
func CheckArchive(ctx context.Context, db *pg.DB, archive, ledgerSchema, payload string, custom bool, missing *catalog.Findings) (catalog.Table, error) {
	schema, name := archiveName(archive, ledgerSchema)
	table, err := catalog.Find(ctx, db, schema, name)
	if err != nil {
		return table, err
	}
	before := len(*missing)
	missing.AddMissing(table, archiveColumns(payload), addsToArchive, "SELECT", "INSERT") // ON CONFLICT reads the columns that it compares
	if custom || payload == "json" {
		missing.AddJSONB(table, "payload", "headers")
	}
	if len(*missing) > before || !table.Exists { // a schema that the role may not use is named once, perhaps before
		return table, nil
	}
	key, columns := "{group_id,id}", "(id, group_id)"
	if table.PartitionKey != "" {
		key, columns = "{archived_at,group_id,id}", "(id, group_id, archived_at)"
	}
	return table, db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {SQL: archiveKeySQL, Args: []string{table.Quoted, key}, Row: func(v [][]byte) error {
		if !pg.ReadBool(v[0]) {
			missing.Add("the archive table "+table.Quoted+" may hold an event twice", "ALTER TABLE "+table.Quoted+" ADD PRIMARY KEY "+columns)
		}
		return nil
	}}})
}
