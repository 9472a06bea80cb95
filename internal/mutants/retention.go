package main

// retentionMutants are about what is deleted of the archive and of the dead letters.
var retentionMutants = []mutant{
	{
		name: "open dead letters are deleted",
		file: "outbox/sqlite/retention.go",
		old:  "  AND closed_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?13)",
		new:  "  AND coalesce(closed_at, died_at) < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '1 day')",
		pkg:  "./outbox/sqlite", test: "TestBuffer_Range$/retention/closed_dead_letters",
	},
	{
		name: "a dead letter that a hook is being notified of is deleted",
		file: "outbox/postgres/internal/deadletter/retention.go",
		old:  "AND (notified_at IS NOT NULL OR hook_group_id IS NULL)))\n    AND d.closed_at IS NOT NULL AND (d.notified_at IS NOT NULL OR d.hook_group_id IS NULL) AND ",
		new:  "))\n    AND d.closed_at IS NOT NULL AND ",
		pkg:  "./outbox/postgres", test: "TestBufferRange$/retention/dead_letters_of_a_hook",
	},
	{
		name: "young events of the archive are deleted",
		file: "outbox/postgres/internal/archive/delete.go",
		old:  "archived_at < (SELECT clock_timestamp() - $2::interval)",
		new:  "archived_at < (SELECT clock_timestamp() - $2::interval * 0)",
		pkg:  "./outbox/postgres", test: "TestBufferRange$/retention/archived_events_of_before",
	},
	{
		name: "a partition is dropped a week early",
		file: "outbox/postgres/internal/migrate/archive_maintain.sql",
		old:  "b.ends <= clock_timestamp() - keep ORDER",
		new:  "b.ends <= clock_timestamp() - keep + interval '7 days' ORDER",
		pkg:  "./outbox/postgres", test: "TestArchive_ByDay",
	},
	{
		name: "a DROP waits for readers of the archive",
		file: "outbox/postgres/internal/migrate/archive_maintain.sql",
		old:  " SET lock_timeout = '100ms'",
		new:  "",
		pkg:  "./outbox/postgres", test: "TestArchive_ByDay",
	},
}
