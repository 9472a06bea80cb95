package postgres

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"text/template"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"

	_ "embed"

	"github.com/jackc/pgx/v5"
)

// ringTrigger is the name of the trigger that rings; applied is what Migrate calls it.
const (
	ringTrigger = "outbox_notify"
	ringApplied = "trigger outbox_notify"
)

//go:embed schema/notify/notify.sql
var notifyDDL string

var notifyTemplate = template.Must(template.New("notify").Parse(notifyDDL))

// ringSQL is the table's oid, and whether its trigger is installed and enabled; no row
// when there is no such table.
const ringSQL = `
SELECT c.oid::bigint, t.oid IS NOT NULL, coalesce(t.tgenabled IN ('O', 'A'), false)
FROM pg_class c LEFT JOIN pg_trigger t ON t.tgrelid = c.oid AND t.tgname = 'outbox_notify' AND NOT t.tgisinternal
WHERE c.oid = to_regclass($1)`

// ring is what there is of the trigger.
type ring struct {
	oid                int64 // the table's; 0: there is none
	installed, enabled bool
}

// works: an insert rings.
func (r ring) works() bool { return r.oid != 0 && r.enabled }

// ring asks for the trigger on a table, through the pool.
func (b *Buffer) ring(ctx context.Context, events string) (r ring, err error) {
	err = b.db.RoundTrip(ctx, []pg.Step{pg.ReadTx(b.db.StatementTimeout), {SQL: ringSQL, Args: []string{events}, Row: func(v [][]byte) error {
		r = ring{pg.ReadInt8(v[0]), pg.ReadBool(v[1]), pg.ReadBool(v[2])}
		return nil
	}}})
	return r, err
}

// makeRing installs the trigger, if there is to be one and is none. One that was
// disabled stays so.
func makeRing(ctx context.Context, tx pgx.Tx, c SchemaConfig) (made bool, err error) {
	if !c.Notify || c.Own {
		return false, nil
	}
	schema, _ := pg.SplitTable(c.Table)
	events := c.names()["Events"]
	var r ring
	if err := tx.QueryRow(ctx, ringSQL, events).Scan(&r.oid, &r.installed, &r.enabled); err != nil || r.installed {
		return false, err
	}
	var ddl strings.Builder
	if err := notifyTemplate.Execute(&ddl, map[string]string{
		"Events": events, "EventsText": strings.ReplaceAll(events, "'", "''"), "Ring": pg.Ident(cmp.Or(c.own(), schema), ringTrigger),
	}); err != nil {
		return false, err
	}
	if _, err := tx.Exec(ctx, ddl.String(), pgx.QueryExecModeSimpleProtocol); err != nil {
		return false, fmt.Errorf("making the trigger that rings: %w", err)
	}
	return true, nil
}
