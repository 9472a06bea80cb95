package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/pgoutbox"
)

func placeOrder(ctx context.Context, pool *pgxpool.Pool, customer string, cents int) (order int64, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, "INSERT INTO orders (customer_id, cents) VALUES ($1, $2) RETURNING id", customer, cents).Scan(&order)
		if err != nil {
			return err
		}
		return pgoutbox.Insert(ctx, tx, outbox.Event{
			Topic:   "orders.created",
			Key:     &customer,
			Payload: fmt.Appendf(nil, `{"order": %d, "cents": %d}`, order, cents),
			Headers: outbox.NewHeaders(map[string]string{"source": "go"}),
		})
	})
	return order, err
}
