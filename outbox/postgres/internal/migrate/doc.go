// Package migrate makes the relay's tables and brings them up to date, while relays and applications use them.
//
// goose applies the embedded migrations and records them in a table next to the ledger. Before that, tables of an earlier version get the
// columns that they lack (decision 0058). DDL waits
// only briefly for a lock, then lets others pass and tries again.
package migrate
