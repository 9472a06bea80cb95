// Package sqlite is the embedded buffer: its statements with the methods that run them, and its embedded
// schema. Applications insert with outbox/sqliteoutbox, which needs none of it.
//
// # One writer
//
// SQLite lets one transaction write at a time, in all processes. A deferred transaction that reads
// first and writes later may find that it can do neither (SQLITE_BUSY in its middle). So every
// transaction here that writes begins IMMEDIATE: it waits for the lock at the start, and from
// then on nothing stops it. With one writer, ids commit in the order in which they are drawn, no row
// is ever locked by itself, and a claim has the table to itself.
//
// # How events are claimed
//
// There are two claim modes, one for all processes on a buffer. outbox_buffers stores it, and it changes
// only while the ledger is empty. A batch's ledger row says how its events are found, so the
// holder of the lease can settle it in any mode.
//
//   - range, the mode of `auto`: a claim writes a ledger row whose members are the ids of the batch
//     and leaves the events alone. An event is written once and deleted once.
//   - stamp: the claim also writes the group_id on each event. `order: key` and custom tables stamp.
//
// # Where claims look
//
// Claims look beyond a cursor, the highest id that this process has claimed, so that they do not walk
// over batches that wait. Events beyond it that other processes hold are skipped: by their stamp,
// or from one gap between the members of live batches to the next. At the start and every few
// minutes a count starts at the beginning, for ids and stamps that were changed by hand.
//
// # Custom tables
//
// A custom table ([Config.Custom]) has an INTEGER PRIMARY KEY and a column group_id for the uuid's text
// or its 16 bytes, depending on the declared type. Its events are claimed by stamp. The projection
// runs after the claim has committed, on a connection that cannot write, and again when a batch is
// taken over; {events} in it stands for the rows of the batch, found by their primary key.
// The archive and the dead letters hold the projected payload. A dead letter also holds the row, so
// that replay can put it back. Foreign keys are enforced for what the relay does there, although
// SQLite's own default is that they are not: rows that refer to an event are deleted with it or keep
// it, and an event without its parent is not put back.
//
// # Several sinks
//
// With [Config.Sinks] a claim writes a row of sink '*', and the route that follows replaces it by a row for each sink that takes any of
// the events. Each of these has members. By range nothing else is written; by stamp the events keep the stamp of the claim, which is the
// claim_id of its rows. What other databases lock and compare, the write lock settles here: a route reads the registry, a settle the rows that
// share its events, and a replay the claim that still holds an event, in the transaction that changes them.
//
// # Ids that are handed out again
//
// AUTOINCREMENT never does that, but sqlite_sequence can be reset by hand, and no trigger would notice. A
// batch claimed by range would then hold events that came later. So its ledger row also holds
// the created_at of its youngest event (newest_at). A younger event is not the batch's: it is
// neither deleted nor sent with it, and claimed after the batch is gone.
package sqlite
