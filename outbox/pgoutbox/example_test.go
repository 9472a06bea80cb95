package pgoutbox_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/pgoutbox"
)

// An event is inserted in the transaction that changes the business data, so
// that both happen or neither does.
func ExampleInsert() {
	placeOrder := func(ctx context.Context, pool *pgxpool.Pool, customer string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			var id int64
			err := tx.QueryRow(ctx, "INSERT INTO orders (customer) VALUES ($1) RETURNING id", customer).Scan(&id)
			if err != nil {
				return err
			}
			return pgoutbox.Insert(ctx, tx, outbox.Event{
				Topic:   "orders.created",
				Key:     new(customer),
				Payload: fmt.Appendf(nil, `{"order": %d}`, id),
				Headers: outbox.NewHeaders(map[string]string{"source": "shop"}),
			})
		})
	}
	_ = placeOrder
}

// The same with database/sql, on any PostgreSQL driver.
func ExampleInsertSQL() {
	placeOrder := func(ctx context.Context, db *sql.DB, customer string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (customer) VALUES ($1)", customer); err != nil {
			return err
		}
		err = pgoutbox.InsertSQL(ctx, tx, outbox.Event{Topic: "orders.created", Payload: []byte(`{"customer": "c-7"}`)})
		if err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = placeOrder
}
