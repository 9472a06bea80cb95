package listen

import (
	"context"
	"fmt"
	"strings"
	"text/template"

	_ "embed"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// TriggerName is the name of the trigger that notifies, and of its function.
const TriggerName = "outbox_notify"

//go:embed notify.sql
var notifyDDL string

var notifyTemplate = template.Must(template.New("notify").Parse(notifyDDL))

// triggerSQL returns no row if there is no such table.
const triggerSQL = `
SELECT c.oid::bigint, t.oid IS NOT NULL, coalesce(t.tgenabled IN ('O', 'A'), false)
FROM pg_class c LEFT JOIN pg_trigger t ON t.tgrelid = c.oid AND t.tgname = 'outbox_notify' AND NOT t.tgisinternal
WHERE c.oid = to_regclass($1)`

type trigger struct {
	tableOID           int64
	installed, enabled bool
}

// findTrigger looks the trigger of a table up, through the pool.
func findTrigger(ctx context.Context, db *pg.DB, table string) (t trigger, err error) {
	err = db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {SQL: triggerSQL, Args: []string{table}, Row: func(v [][]byte) error {
		t = trigger{pg.ReadInt8(v[0]), pg.ReadBool(v[1]), pg.ReadBool(v[2])}
		return nil
	}}})
	return t, err
}

// InstallTrigger makes the trigger of a table and its function in a schema, unless the table has
// it, enabled or not. Both names are quoted.
func InstallTrigger(ctx context.Context, tx pgx.Tx, table, function string) (installed bool, err error) {
	var t trigger
	if err := tx.QueryRow(ctx, triggerSQL, table).Scan(&t.tableOID, &t.installed, &t.enabled); err != nil || t.installed {
		return false, err
	}
	var ddl strings.Builder
	if err := notifyTemplate.Execute(&ddl, map[string]string{
		"Events": table, "EventsText": strings.ReplaceAll(table, "'", "''"), "Notify": function,
	}); err != nil {
		return false, err
	}
	if _, err := tx.Exec(ctx, ddl.String(), pgx.QueryExecModeSimpleProtocol); err != nil {
		return false, fmt.Errorf("installing the trigger %s: %w", TriggerName, err)
	}
	return true, nil
}
