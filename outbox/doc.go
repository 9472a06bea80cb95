// Package outbox holds what an application imports: [Event], its [Headers], and the error of an
// invalid event. It imports the standard library only.
//
// An application written in Go enqueues with the Insert of its database's package, inside its
// own transaction:
//
//	outbox/pgoutbox      Insert (pgx.Tx) and InsertSQL (*sql.Tx)
//	outbox/sqliteoutbox  Insert (*sql.Tx)
//
// These packages depend on nothing but the database's driver. The relay itself works with batches; see
// outbox/buffer.
package outbox
