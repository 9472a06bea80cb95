// Package postgres is the buffer on PostgreSQL. Applications insert with outbox/pgoutbox, which needs none of it.
//
// # Packages
//
// This package is the public API. Each part is a package under internal, and imports point down this list:
//
//	doctor      diagnosis, vacuum blockers
//	custom      tables that the application owns: a second implementation of the event table
//	deadletter  dead letters: list, replay, discard, and the queue of the hook
//	claim       which events become a batch, and in which mode
//	backlog     counts, sweeps, status, audit and repair
//	ledger      the life of a batch after its claim: lease, take-over, settle
//	migrate     schema and migrations
//	listen      LISTEN/NOTIFY, to wake an idle relay
//	watermark   the two event ids where claims and sweeps begin: cursor and floor
//	catalog     what the catalog says of a table
//	pg          connections, transactions, prepared statements
//
// An event is claimed in claim (range.go, stamp.go, order.go), and its row is deleted in ledger (settle_events.go), both for
// the relay's own table. Package custom does the same for custom tables (claim.go, settle.go).
//
// # The wire
//
// A transaction is one pipelined round trip, with parameters in text and results in binary form. Its settings end
// with it, so a transaction pooler may stand in between. Statements that run for each batch are prepared once a
// connection, unless a pooler is in the way. Only the listener keeps a connection of its own.
package postgres
