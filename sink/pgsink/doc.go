// Package pgsink inserts events into a table of a PostgreSQL database: an inbox, which a service reads in its own transactions.
//
// # The way of a batch
//
//	look up the table: its columns, their types, the primary key      table.go
//	encode one array for each column                                  insert.go
//	INSERT ... SELECT FROM unnest of each, ON CONFLICT (id) DO NOTHING     insert.go
//	classify the error                                                errors.go
//
// A batch is one statement in one implicit transaction and one round trip: it is inserted as a whole or not at all. The
// primary key is the event's dedupe id ([sink.AppendDedupeID]), which no other event ever has, so an event that is sent again
// adds nothing for as long as its row is in the table.
//
// No statement is prepared and no session setting outlasts its transaction, so PgBouncer in transaction mode may be in between.
package pgsink
