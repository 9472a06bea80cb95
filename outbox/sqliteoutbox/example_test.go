package sqliteoutbox_test

import (
	"context"
	"database/sql"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/sqliteoutbox"
)

// An order and the event about it are committed together, or neither is.
func ExampleInsert() {
	placeOrder := func(ctx context.Context, db *sql.DB, customer string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (customer, total) VALUES (?, ?)", customer, 4200); err != nil {
			return err
		}
		err = sqliteoutbox.Insert(ctx, tx, outbox.Event{
			Topic:   "orders.created",
			Key:     &customer,
			Payload: []byte(`{"customer": "customer-7", "total": 4200}`),
			Headers: outbox.NewHeaders(map[string]string{"source": "shop"}),
		})
		if err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = placeOrder
}
