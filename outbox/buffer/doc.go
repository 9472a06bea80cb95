// Package buffer is the contract of a buffer: the interfaces that a database implements for the relay, and
// the values that go to and fro. outbox/buffertest is the suite that every buffer passes.
//
// Every method is safe for concurrent use, by several processes too. It honours its context, and is one round
// trip if the database allows it. An error that is none of this package's is the database's (connection,
// lock, full disk): the caller tries again. No error contains a password.
//
// # The states of a batch
//
//	         Claim            Settle: all delivered or dead
//	events ─────────▶ leased ───────────────────────────────▶ gone
//	                  ▲ │  │
//	         TakeOver │ │  └─ MarkDelivered ─▶ delivered ─ TakeOver, Settle ─▶ gone
//	                  │ ▼ Settle: retry
//	                 waiting
//
// A batch is leased again (taken over) when its lease is over, its retry is due, or its rows could
// not be deleted after delivery. If its last lease ended unfinished, it is a suspect ([DueSuspect]): its
// events may have killed their owner. Each lease raises lease_no, which is the fence: an owner with an older
// lease_no settles nothing.
package buffer
