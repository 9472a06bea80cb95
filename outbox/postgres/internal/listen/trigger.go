package listen

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"text/template"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// TriggerName is the name of the trigger that notifies, and of its function.
const TriggerName = "outbox_notify"

//go:embed notify.sql
var notifyDDL string

var notifyTemplate = template.Must(template.New("notify").Parse(notifyDDL))

// otherLockSQL reports whether trigger t tries the lock of another table than c, and so never notifies: its definition was copied
// from one that had the name of c.
const otherLockSQL = `EXISTS (
    SELECT FROM pg_depend d
    WHERE d.classid = 'pg_trigger'::regclass AND d.objid = t.oid AND d.refclassid = 'pg_class'::regclass AND d.refobjid <> c.oid)`

// triggerSQL returns no row if there is no such table.
const triggerSQL = `
SELECT c.oid::bigint, t.oid IS NOT NULL AND NOT ` + otherLockSQL + `,
       coalesce(t.tgenabled IN ('O', 'A') AND NOT ` + otherLockSQL + `, false)
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

// TriggerDDL returns the DDL of the trigger of a table and its function. Both names are quoted.
func TriggerDDL(table, function string) (string, error) {
	var ddl strings.Builder
	err := notifyTemplate.Execute(&ddl, map[string]string{
		"Events": table, "EventsText": strings.ReplaceAll(table, "'", "''"), "Notify": function,
	})
	return ddl.String(), err
}

// InstallTrigger makes the trigger of a table and its function in a schema, unless the table has
// it, enabled or not. Both names are quoted.
func InstallTrigger(ctx context.Context, tx pgx.Tx, table, function string) (installed bool, err error) {
	var t trigger
	if err := tx.QueryRow(ctx, triggerSQL, table).Scan(&t.tableOID, &t.installed, &t.enabled); err != nil || t.installed {
		return false, err
	}
	ddl, err := TriggerDDL(table, function)
	if err != nil {
		return false, err
	}
	if _, err := tx.Exec(ctx, ddl, pgx.QueryExecModeSimpleProtocol); err != nil {
		return false, fmt.Errorf("installing the trigger %s: %w", TriggerName, err)
	}
	return true, nil
}

// Subject is what findings about listening are about.
const Subject = "wake-ups"

// Diagnose returns the finding about how events wake a relay.
func (l *Listener) Diagnose(ctx context.Context, table string) (buffer.Finding, error) {
	found, err := l.findObstacle(ctx, table)
	f := buffer.Finding{Subject: Subject}
	switch {
	case err != nil:
	case found == nil:
		f.Text = "commits notify the relay"
	case l.config.Wake == buffer.WakeNotify:
		f = buffer.Finding{Level: buffer.LevelWarning, Subject: Subject, Text: "wake is notify, but " + found.text + "; " + polling, Fix: found.fix}
	case found == errNoTrigger:
		f.Text = polling + "; to be notified of commits, run relay migrate"
	default:
		f.Text = found.text + "; " + polling
	}
	return f, err
}

// findObstacle returns nil if the relay can listen.
func (l *Listener) findObstacle(ctx context.Context, table string) (*obstacle, error) {
	trigger, err := findTrigger(ctx, l.config.DB, table)
	if err != nil || !trigger.enabled {
		return errNoTrigger, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	config, err := pg.ConnConfig(l.config.Hub.URL)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if pooled, err := pg.ThroughPooler(ctx, conn); err != nil || !pooled {
		return nil, err
	}
	return errPooled, nil
}
