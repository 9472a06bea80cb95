package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/pgoutbox"
)

// shipments is a second buffer, with another sink.
var shipments = pgoutbox.Table{Name: "outbox_shipments"}

func ship(ctx context.Context, pool *pgxpool.Pool, order int64) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "UPDATE orders SET shipped_at = now() WHERE id = $1", order); err != nil {
			return err
		}
		return shipments.Insert(ctx, tx, outbox.Event{
			Topic:   "shipments.sent",
			Payload: fmt.Appendf(nil, `{"order": %d}`, order),
		})
	})
}
