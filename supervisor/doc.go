// Package supervisor watches a database for what holds its horizon back: old
// transactions, prepared ones and replication slots, because of which vacuum may not
// take dead rows away.
//
// Every few seconds it looks. A holder goes through these states:
//
//	seen ──warn_after──▶ told ──age doubles──▶ told again ... ──▶ gone, told
//	                       └──terminate_after, and a rule fits──▶ ended
//
// It ends sessions only where a [buffer.SupervisorPolicy] says so, and of those only clients'. What
// it may not see the age of (slots, other roles' sessions without pg_read_all_stats) it
// goes by as long as it has seen it hold the same transaction id.
package supervisor
