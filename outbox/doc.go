// Package outbox holds what an application imports: [Event], its [Headers], and the error of an
// invalid event. It imports nothing else of the relay.
//
// An application written in Go enqueues with the Insert of its database's package, inside its
// own transaction:
//
//	outbox/postgres  Insert (pgx.Tx) and InsertSQL (*sql.Tx)
//	outbox/sqlite    Insert (*sql.Tx)
//
// The relay itself works with batches; see outbox/buffer.
package outbox
