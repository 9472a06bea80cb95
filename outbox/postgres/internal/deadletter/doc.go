// Package deadletter lists, counts, replays and discards a pipeline's dead letters, and is the queue
// from which the dead-letter hook is notified of them:
//
//	buried ──▶ open, unnotified ──hook claims──▶ notifying ──hook accepted──▶ open, notified
//	           open ──replay or discard──▶ closed
//
// The queue's batches are rows of the ledger, like those of events. hook_group_id on a dead letter
// names its batch while the hook is being notified.
package deadletter
