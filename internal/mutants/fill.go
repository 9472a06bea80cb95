package main

// fillMutants are about a sink that gets events of before it was added.
var fillMutants = []mutant{
	{
		name: "a batch that was filled lacks the sink",
		file: "outbox/postgres/internal/router/fill.go",
		old:  "  UPDATE outbox_batches l SET routes_no = sink.routes_no FROM sink\n",
		new:  "  UPDATE outbox_batches l SET routes_no = l.routes_no FROM sink\n",
		pkg:  "./outbox/postgres", test: "TestSinks$/fill/each_event_once",
	},
	{
		name: "an event of the archive is filled again",
		file: "outbox/postgres/internal/router/fill.go",
		old:  "    AND NOT EXISTS (SELECT FROM outbox_archive o WHERE o.id = p.id AND o.created_at = p.created_at AND o.routes_no <@ sink.routed)\n",
		new:  "",
		pkg:  "./outbox/postgres", test: "TestSinks$/fill/each_event_once",
	},
	{
		name: "a batch of an earlier claim always comes first",
		file: "outbox/postgres/internal/ledger/lanes.go",
		old:  "  ORDER BY due_at, n LIMIT 50",
		new:  "  ORDER BY n LIMIT 50",
		pkg:  "./outbox/postgres", test: "TestSinks$/order/what_has_been",
	},
	{
		name: "a fill sends an event whose dead letter is open",
		file: "outbox/postgres/internal/router/fill.go",
		old:  " AND d.closed_at IS NULL AND d.sink IN ('*', 'default'))",
		new:  " AND d.closed_at IS NULL AND d.sink = 'nobody')",
		pkg:  "./outbox/postgres", test: "TestSinks$/fill/events_with",
	},
	{
		name: "a fill does not wait for settles of the claim",
		file: "outbox/postgres/internal/router/fill.go",
		old:  "		ledger.LockClaim(claim),\n",
		new:  "",
		pkg:  "./outbox/postgres", test: "TestSinks$/fill/beside_workers",
	},
	{
		name: "a leased batch gets a claim_id",
		file: "outbox/postgres/internal/router/fill.go",
		old:  "WHERE group_id = $1::uuid AND claim_id IS NULL AND state = 'waiting'`",
		new:  "WHERE group_id = $1::uuid AND claim_id IS NULL`",
		pkg:  "./outbox/postgres", test: "TestSinks$/fill/a_leased_batch",
	},
	{
		name: "a route adds to a batch of before the sink was added",
		file: "outbox/postgres/internal/router/route.go",
		old:  "      AND routes_no = ` + ledger.RoutesNoSQL + ` FOR UPDATE",
		new:  "      FOR UPDATE",
		pkg:  "./outbox/postgres", test: "TestSinks$/fill/beside_an_old_registry",
	},
	{
		name: "a part does not know when it was routed",
		file: "outbox/postgres/internal/ledger/settle_events.go",
		old:  "'[]')), ` + SinkSQL + `, ` + RoutesNoSQL + `\nFROM regrouped WHERE $2",
		new:  "'[]')), ` + SinkSQL + `, NULL::bigint\nFROM regrouped WHERE $2",
		pkg:  "./outbox/postgres", test: "TestSinks$/fill/a_leased_batch",
	},
	{
		name: "a restored sink has what was routed while it was dropped",
		file: "outbox/postgres/internal/router/drop.go",
		old:  "    routed = s.routed - (SELECT",
		new:  "    routed = s.routed + (SELECT",
		pkg:  "./outbox/postgres", test: "TestSinks$/fill/a_restored_sink",
	},
	{
		name: "a fill of a custom table does not look again at what lacks the sink",
		file: "outbox/postgres/internal/custom/fill.go",
		old:  "  WHERE e.group_id = $3::uuid AND x.n <@ t.ids\n",
		new:  "  WHERE e.group_id = $3::uuid\n",
		pkg:  "./outbox/postgres", test: "TestCustomFill_Held",
	},
	{
		name: "a fill of a custom table does not wait for settles of the claim",
		file: "outbox/postgres/internal/custom/fill.go",
		old:  "		steps = append(steps, ledger.LockClaim(f.Claim), pg.Step{\n",
		new:  "		steps = append(steps, pg.Step{\n",
		pkg:  "./outbox/postgres", test: "TestCustomFill_Settling",
	},
	{
		name: "a part of a custom table does not know when it was routed",
		file: "outbox/postgres/internal/custom/settle_routed.go",
		old:  "'[]')), ` + ledger.SinkSQL + `, $1::uuid, ` + ledger.RoutesNoSQL + `, custom_uuids",
		new:  "'[]')), ` + ledger.SinkSQL + `, $1::uuid, NULL::bigint, custom_uuids",
		pkg:  "./outbox/postgres", test: "TestCustomFill_Parts",
	},
}
