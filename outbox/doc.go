// Package outbox holds the nouns of the relay: what an application inserts
// ([Event]), what a worker owns ([Batch]), what became of it ([Outcome]), and
// the errors every buffer answers with. It imports nothing else of the relay.
//
// An application written in Go enqueues with the Insert of its database's
// package, inside its own transaction:
//
//	outbox/postgres  Insert (pgx.Tx) and InsertSQL (*sql.Tx)
//	outbox/sqlite    Insert (*sql.Tx)
//
// # The life of a batch
//
//	          Claim                       Settle: all delivered
//	events ──────────▶ leased ───────────────────────────────────▶ gone
//	                    │  ▲ │
//	  Settle: retry     │  │ │  MarkDelivered (sent, but the delete failed)
//	          ▼─────────┘  │ ▼
//	       waiting ────────┘ delivered ──▶ delete tried again ──▶ gone
//	              TakeOver
//
// A batch whose lease is over, whose retry is due, or that is marked delivered
// and whose time has come, is taken over: its lease_no rises, and with it the
// fence. Whoever holds an older lease_no settles nothing.
package outbox
