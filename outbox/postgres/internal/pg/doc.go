// Package pg is the relay's connection to PostgreSQL: a pool, transactions that take one
// round trip, prepared statements, retries, settings, and the encoding of parameters and
// results. It knows no table.
//
// A transaction is a list of steps that is sent at once, with parameters in text and
// results in binary form. Its settings end with it, so a transaction pooler may stand in
// between. Statements marked Prepare are prepared once a connection, unless a pooler is in
// the way; all others are unnamed.
package pg
