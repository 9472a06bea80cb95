// Package watermark remembers, for one process, two event ids of a buffer: the cursor, after which claims
// begin, and the floor, at or below which nothing is unclaimed. It also remembers when batches of the
// ledger are due.
//
// Delivered rows stay in an index as dead entries until vacuum removes them, and a snapshot held
// elsewhere can put that off for hours. So nothing reads an index from its left end. Two watermarks
// say where to begin:
//
//	floor ≤ cursor ≤ the sequence's last value
//
// Both begin at 0, or below the sequence's MINVALUE if that is less.
//
// Claims look only beyond the cursor. Nothing unclaimed is at or below the floor, and nothing can
// appear there. In between there may be late commits: ids that were drawn before the cursor passed
// them, in transactions that committed after. A sweep looks for them every second or so, and a full
// sweep looks from the beginning every few minutes.
//
// The floor moves in four steps, each seen by a later statement than the one before, so that no
// commit can slip in between:
//
//  1. the sequence's last value M is read;
//  2. the holders of RowExclusiveLock on the sequence are noted: nextval takes that lock before it
//     draws and keeps it until its transaction ends;
//  3. all of them are gone: everything up to M is committed or never will be;
//  4. a count of (floor, M] finds nothing unclaimed: the floor is M.
//
// The watermarks only save work. A sweep finds what they hide, and nothing is deleted or skipped
// for good because of them.
package watermark
