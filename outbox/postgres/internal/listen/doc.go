// Package listen wakes an idle relay when events are committed. A trigger on the buffer table
// sends a notification (NOTIFY), which a Listener receives on a connection of its own.
//
// Commits that notify wait for each other, so none notifies unless a relay is idle. Each buffer
// table has an advisory lock for that:
//
//   - An idle relay holds the lock exclusively; an active relay releases it (Pause).
//   - An insert tries to share the lock until its transaction ends. If it cannot, it notifies.
//
// When a relay gets the lock, every transaction that inserted without notifying has ended, so a
// claim finds its events. All later ones notify. So no commit is missed.
package listen
