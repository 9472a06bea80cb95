// Package supervisor watches a database for vacuum blockers: old transactions, prepared
// transactions and replication slots, because of which vacuum cannot remove dead rows.
//
// It asks every few seconds. A blocker goes through these states:
//
//	observed ──warn_after──▶ warned ──age doubles──▶ warned again ... ──▶ gone, logged
//	                           └──terminate_after, and a policy matches──▶ terminated
//
// It terminates sessions only if a [buffer.SupervisorPolicy] says so, and only those of clients. If
// the role may not see how old a blocker is (slots, other roles' sessions without
// pg_read_all_stats), its age is the time since the supervisor first saw it hold the
// same transaction id.
package supervisor
