package main

// claimMutants are about which events are claimed, and in what order.
var claimMutants = []mutant{
	{
		name: "a claim serves who asked after it began",
		file: "outbox/postgres/internal/claim/turns.go",
		old:  "	if t.emptied.After(asked) {",
		new:  "	if !t.emptied.IsZero() {",
		pkg:  "./outbox/postgres/internal/claim", test: "TestTurns_Serves",
	},
	// Watermarks.
	{
		name: "the floor moves past a gap",
		file: "outbox/postgres/internal/watermark/watermarks.go",
		old:  "	if w.watched > 0 && len(w.lockHolders) == 0 {",
		new:  "	if w.watched > 0 {",
		pkg:  "./outbox/postgres/internal/watermark", test: "TestFloor_WaitsForHolders",
	},
	{
		name: "a sweep leaves out the ids of a long transaction that has ended",
		file: "outbox/postgres/internal/watermark/watermarks.go",
		old:  "			from = min(from, since)\n",
		new:  "			from = min(from, max(since, w.sweptM))\n",
		pkg:  "./outbox/postgres/internal/watermark", test: "TestSweeps_FindLateCommits",
	},
	{
		name: "no sweep looks behind the cursor",
		file: "outbox/postgres/internal/watermark/watermarks.go",
		old:  "w.floor < w.cursor && (w.ordered || !now.Before(w.sweepNext)) {",
		new:  "w.floor < w.cursor && (w.ordered || now.Before(w.sweepNext)) {",
		pkg:  "./pipeline", test: "TestLateCommits_Arrive$",
	},
	{
		name: "a sequence that is set back goes unnoticed",
		file: "outbox/postgres/internal/watermark/watermarks.go",
		old:  "	case renumbered, seen.LastValue < began:",
		new:  "	case renumbered && seen.LastValue < 0, seen.LastValue < 0:",
		pkg:  "./pipeline", test: "TestSequence_SetBack",
	},
	{
		name: "a range with a gap is remembered",
		file: "outbox/postgres/internal/watermark/watermarks.go",
		old:  "		case r.Last-r.First == int64(len(batch.Events))-1:",
		new:  "		case r.Last >= r.First:",
		pkg:  "./outbox/postgres/internal/watermark", test: "TestAddClaimed_Properties",
	},
	{
		name: "a claim after one with a gap passes over late commits",
		file: "outbox/postgres/internal/watermark/watermarks.go",
		old:  "	case w.lateScanDue():\n		late.UpTo = fresh.UpTo",
		new:  "	case w.lateScanDue():\n		late = fresh",
		pkg:  "./outbox/postgres/internal/watermark", test: "TestRanges_LateBeforeSweep",
	},
	// Range claims.
	{
		name: "a claim takes events of live batches",
		file: "outbox/postgres/internal/claim/range.go",
		old:  "AND group_id IS NULL AND NOT id <@ (SELECT members FROM held)\n      AND EXISTS",
		new:  "AND group_id IS NULL AND NOT id <@ (SELECT members * '{}' FROM held)\n      AND EXISTS",
		pkg:  "./outbox/postgres", test: "TestBufferRange/range",
	},
	{
		name: "a range is deleted from its first id to its last",
		file: "outbox/postgres/internal/ledger/settle_events.go",
		old:  "AND id <@ $4::int8multirange\n  AND (group_id = $1::uuid OR group_id IS NULL AND created_at <= ` + newestSQL + `)`",
		new:  "AND $4::int8multirange IS NOT NULL\n  AND (group_id = $1::uuid OR group_id IS NULL AND created_at <= ` + newestSQL + `)`",
		pkg:  "./outbox/postgres", test: "TestBufferRange/range",
	},
	{
		name: "a range has no gaps",
		file: "outbox/postgres/internal/claim/range.go",
		old:  "CASE WHEN last_id::numeric - first_id < n THEN",
		new:  "CASE WHEN last_id::numeric - first_id < n + 1000 THEN",
		pkg:  "./outbox/postgres", test: "TestBufferRange/range",
	},
	{
		name: "range claims are not serialised",
		file: "outbox/postgres/internal/claim/range.go",
		old:  "pg.Step{Prepare: true, SQL: lockSQL, Args: []string{t.Buffer}},",
		new:  "pg.Step{Prepare: true, SQL: lockSQL, Args: []string{buffer.NewGroupID().String()}},",
		pkg:  "./outbox/postgres", test: "TestBufferRange/claim",
	},
	{
		name: "a new event with a reused id is a member of a batch by range",
		file: "outbox/postgres/internal/ledger/settle.go",
		old:  "ELSE to_json(coalesce(newest_at, 'infinity')) #>> '{}' END",
		new:  "ELSE to_json(coalesce(nullif(newest_at, newest_at), 'infinity')) #>> '{}' END",
		pkg:  "./outbox/postgres", test: "TestRange_IDsReused",
	},
	{
		name: "a take-over reads a new event with a reused id",
		file: "outbox/postgres/internal/ledger/read.go",
		old:  "coalesce(newest_at, 'infinity') AS newest_at",
		new:  "coalesce(nullif(newest_at, newest_at), 'infinity') AS newest_at",
		pkg:  "./outbox/postgres", test: "TestRange_IDsReused",
	},
	{
		name: "a settle by range deletes what another batch holds by its group_id",
		file: "outbox/postgres/internal/ledger/settle_events.go",
		old:  "AND id <@ $4::int8multirange\n  AND (group_id = $1::uuid OR group_id IS NULL AND created_at",
		new:  "AND id <@ $4::int8multirange\n  AND (group_id = $1::uuid OR created_at",
		pkg:  "./outbox/postgres", test: "TestRange_GroupIDSet",
	},
	{
		name: "an archive of jsonb takes payloads of json",
		file: "outbox/postgres/internal/migrate/archive.go",
		old:  "	if custom || payload == \"json\" {",
		new:  "	if custom {",
		pkg:  "./outbox/postgres", test: "TestCheck_ArchiveJSONB",
	},
	{
		name: "the payload is rewritten by the database",
		file: "outbox/postgres/internal/migrate/schema.go",
		old:  "payload, headers, deadPayload, custom := \"json\"",
		new:  "payload, headers, deadPayload, custom := \"jsonb\"",
		pkg:  "./outbox/postgres", test: "TestPayloadTypes",
	},
	{
		name: "TRUNCATE leaves the batches",
		file: "outbox/postgres/internal/migrate/schema/0001_outbox.sql",
		old:  "DELETE FROM %I.outbox_batches WHERE buffer = $1'",
		new:  "DELETE FROM %I.outbox_batches WHERE buffer = $1 AND false'",
		pkg:  "./outbox/postgres", test: "TestTruncate_DeletesBatches",
	},
	// Order.
	{
		name: "a part overtakes another of its key on SQLite",
		file: "outbox/sqlite/order.go",
		old:  "AND part.first_id < l.first_id",
		new:  "AND part.first_id < 0 AND l.first_id > 0",
		pkg:  "./outbox/sqlite", test: "TestBuffer_Stamp/order",
	},
	{
		name: "a claim takes keys of a live batch",
		file: "outbox/postgres/internal/claim/order.go",
		old:  "lane NOT IN (SELECT lane FROM held)",
		new:  "lane NOT IN (SELECT lane FROM held WHERE false)",
		pkg:  "./pipeline", test: "TestOrderProtocol/postgres",
	},
	{
		name: "parts that share a key overtake each other",
		file: "outbox/postgres/internal/ledger/takeover.go",
		old:  "s.first_id < d.first_id AND s.lanes && d.lanes",
		new:  "s.first_id < d.first_id AND false",
		pkg:  "./pipeline", test: "TestOrderProtocol/postgres",
	},
	{
		name: "JetStream gets the event behind a failed one",
		file: "sink/natssink/order.go",
		old:  "case result == nil || errors.Is(result, sink.ErrPermanent):",
		new:  "case true:",
		pkg:  "./sink/natssink", test: "TestOrdered_BehindFailedEvent",
	},
	// Claiming ahead.
	{
		name: "a batch claimed ahead is sent to an unavailable sink",
		file: "delivery/worker.go",
		old: "	if slot != nil {\n		release, ok := slot(ctx)\n		if !ok {\n			return w.released(ctx, l)\n		}\n		defer release()\n	}\n" +
			"	// Not before: what was recorded while the batch waited for its slot counts.\n	if outcomes := w.deferUnavailable(l); outcomes != nil {",
		new: "	outcomes := w.deferUnavailable(l)\n	if slot != nil {\n		release, ok := slot(ctx)\n		if !ok {\n			return w.released(ctx, l)\n		}\n		defer release()\n	}\n	if outcomes != nil {",
		pkg: "./pipeline", test: "TestClaimAhead_ObeysRetryAfter",
	},
}
