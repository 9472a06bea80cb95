package main

// sqliteSinkMutants are about several sinks of one buffer on SQLite.
var sqliteSinkMutants = []mutant{
	{
		name: "a filter by sink finds the dead letters of all sinks of a SQLite file",
		file: "outbox/sqlite/deadletters.go",
		old:  "AND (?8 = '' OR sink = ?8 OR sink IN (",
		new:  "AND (?8 = ?8 OR sink IN (",
		pkg:  "./outbox/sqlite", test: "TestDeadLetters_Sink",
	},
	{
		name: "a settle on SQLite deletes what another sink has not got",
		file: "outbox/sqlite/settle_shared.go",
		old:  "return idset.Without(ids, s.sets...)",
		new:  "return ids",
		pkg:  "./outbox/sqlite", test: "TestRoute$",
	},
	{
		name: "a part of a batch on SQLite is no row of its claim",
		file: "outbox/sqlite/settle.go",
		old:  "o.UnfinishedLeases, in.claimed, in.sink, in.claimID)",
		new:  "o.UnfinishedLeases, in.claimed, in.sink, nil)",
		pkg:  "./outbox/sqlite", test: "TestSinks_Workers",
	},
	{
		name: "a part of a batch on SQLite has the sink's former name",
		file: "outbox/sqlite/settle.go",
		old:  "o.UnfinishedLeases, in.claimed, in.sink, in.claimID)",
		new:  "o.UnfinishedLeases, in.claimed, b.ledger.sink, in.claimID)",
		pkg:  "./outbox/sqlite", test: "TestRenameSink$",
	},
	{
		name: "a relay on SQLite routes by the registry of its start",
		file: "outbox/sqlite/routes.go",
		old:  "case no == known.no:",
		new:  "case no >= known.no:",
		pkg:  "./outbox/sqlite", test: "TestRoute_ChangedRegistry",
	},
	{
		name: "a lost lease of an unrouted batch on SQLite is routed",
		file: "outbox/sqlite/route.go",
		old:  "AND lease_no = ?3 AND sink = '*' AND state = 'leased'",
		new:  "AND lease_no >= ?3 AND sink = '*' AND state = 'leased'",
		pkg:  "./outbox/sqlite", test: "TestRoute_LeaseLost",
	},
	{
		name: "a sweep on SQLite takes what a sink waits for as an orphan",
		file: "outbox/sqlite/backlog.go",
		old:  "WHERE l.claim_id = lower(e.group_id) AND",
		new:  "WHERE FALSE AND",
		pkg:  "./outbox/sqlite", test: "TestRoute_NoOrphans",
	},
	{
		name: "a replay on SQLite joins no claim",
		file: "outbox/sqlite/replay_routed.go",
		old:  "to.sink, idset.JSONIDs(of), to.claimID)",
		new:  "to.sink, idset.JSONIDs(of), nil)",
		pkg:  "./outbox/sqlite", test: "TestReplay_Routed",
	},
	{
		name: "batches of a sink on SQLite that nobody dropped are ended",
		file: "outbox/sqlite/registry.go",
		old:  "AND EXISTS (SELECT 1 FROM outbox_sinks WHERE buffer = ?3 AND sink = ?4 AND dropped_at IS NOT NULL)",
		new:  "",
		pkg:  "./outbox/sqlite", test: "TestDropSink_Unknown",
	},
	{
		name: "a change of the sinks on SQLite wakes no kept events",
		file: "outbox/sqlite/routes.go",
		old:  "if changed || b.config.Unmatched != buffer.UnmatchedKeep {",
		new:  "if b.config.Unmatched != buffer.UnmatchedKeep {",
		pkg:  "./outbox/sqlite", test: "TestUnmatched_Keep",
	},
}
