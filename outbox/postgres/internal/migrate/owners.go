package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/listen"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// refuseForeign returns a buffer.ErrNotReady if another role made an object that Migrate would take for the relay's:
// IF NOT EXISTS keeps a table with its triggers, and OR REPLACE a function's owner.
func refuseForeign(ctx context.Context, tx pgx.Tx, c Config) error {
	var foreign catalog.Findings
	if err := foreign.AddForeignTx(ctx, tx, c.objects()); err != nil {
		return err
	}
	return foreign.Err()
}

// objects are those that Migrate makes.
func (c Config) objects() catalog.Objects {
	o := LedgerObjects(c.ledgerSchema())
	o.Relations = append(o.Relations, c.versionTable())
	o.Guarded = append(o.Guarded, c.versionTable())
	if !c.Custom {
		o.Relations = append(o.Relations, c.events())
	}
	if c.Archive != "" {
		archive := pg.Ident(archiveName(c.Archive, c.ledgerSchema()))
		o.Relations, o.Guarded = append(o.Relations, archive), append(o.Guarded, archive)
	}
	return o
}

// LedgerObjects are the relay's own tables, sequence and functions in a schema.
func LedgerObjects(schema string) catalog.Objects {
	var o catalog.Objects
	for _, name := range []string{"outbox_batches", "outbox_dead_letters", "outbox_buffers", "outbox_rates", "outbox_sinks", "outbox_relays", "outbox_numbers"} {
		o.Relations = append(o.Relations, pg.Ident(schema, name))
	}
	o.Guarded = append(o.Guarded, o.Relations...)
	o.Functions = []string{pg.Ident(schema, "outbox_truncated"), pg.Ident(schema, listen.TriggerName)}
	return o
}

// refuseOther returns a buffer.ErrNotReady if the buffer belongs to the ledger of another schema. Its trigger would name this one.
func refuseOther(ctx context.Context, tx pgx.Tx, c Config) error {
	var other string
	err := tx.QueryRow(ctx, ledger.OtherLedgerSQL, c.events(), c.ledgerSchema()).Scan(&other)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	var missing catalog.Findings
	missing.Add(fmt.Sprintf("table %s belongs to the ledger in schema %s, which its trigger outbox_truncated names; two ledgers would each send all of its events", c.events(), pg.Quote(other)),
		fmt.Sprintf("source.schema: %s; or, to move the ledger, stop the relays when relay status shows no batches, and run: DROP TRIGGER outbox_truncated ON %s", other, c.events()))
	return missing.Err()
}
