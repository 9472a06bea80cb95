package main

// routingMutants are about several sinks of one buffer.
var routingMutants = []mutant{
	{
		name: "two settles of a claim do not wait for each other",
		file: "outbox/postgres/internal/ledger/settle_routed.go",
		old:  "	return []pg.Step{s.lockClaim()}\n",
		new:  "	return nil\n",
		pkg:  "./outbox/postgres", test: "TestSinks_Workers",
	},
	{
		name: "a settle deletes what another sink waits for",
		file: "outbox/postgres/internal/ledger/settle_routed.go",
		old:  "o.claim_id = $3::uuid AND o.group_id <> $1::uuid)",
		new:  "o.claim_id = $3::uuid AND o.group_id = $1::uuid)",
		pkg:  "./outbox/postgres", test: "TestRoute$",
	},
	{
		name: "a part leaves its claim",
		file: "outbox/postgres/internal/ledger/settle_routed.go",
		old:  "sinkSQL + `, $15::uuid\n",
		new:  "sinkSQL + `, NULL::uuid\n",
		pkg:  "./outbox/postgres", test: "TestSinks_Workers",
	},
	{
		name: "events of several sinks are taken for orphans",
		file: "outbox/postgres/internal/backlog/sweep.go",
		old:  "l.claim_id = e.group_id AND e.id <@ l.members)",
		new:  "l.claim_id = e.group_id AND e.id <@ l.members AND false)",
		pkg:  "./outbox/postgres", test: "TestRoute_NoOrphans",
	},
	{
		name: "a route does not compare the registry",
		file: "outbox/postgres/internal/router/route.go",
		old:  "WHERE buffer = $1) = $4::bigint`",
		new:  "WHERE buffer = $1) >= $4::bigint`",
		pkg:  "./outbox/postgres", test: "TestRoute_ChangedRegistry",
	},
	{
		name: "a start removes the sinks that it does not have",
		file: "outbox/postgres/internal/router/registry.go",
		old:  "SELECT routes_no FROM outbox_buffers WHERE buffer = $1 FOR UPDATE`",
		new:  "DELETE FROM outbox_sinks WHERE buffer = $1`",
		pkg:  "./outbox/postgres", test: "TestRoute_ChangedRegistry",
	},
	{
		name: "a relay with a single sink claims events of several",
		file: "outbox/postgres/internal/claim/range.go",
		old:  "AND routed = ($11 = '*'))",
		new:  "AND (routed = ($11 = '*') OR true))",
		pkg:  "./outbox/postgres", test: "TestRoute_SingleSinkStops",
	},
	{
		name: "a replay does not join the claim that holds the event",
		file: "outbox/postgres/internal/deadletter/replay_routed.go",
		old:  "WHERE NOT j.has GROUP BY j.sink, j.claim_id",
		new:  "WHERE NOT j.has AND false GROUP BY j.sink, j.claim_id",
		pkg:  "./outbox/postgres", test: "TestReplay_Routed",
	},
	{
		name: "an event that no sink takes is deleted without a dead letter",
		file: "outbox/postgres/internal/router/route.go",
		old:  "		{SQL: t.SQL(buryUnmatchedSQL), Args: []string{r.base.Pipeline, group, first, last, members, claim}},\n",
		new:  "",
		pkg:  "./outbox/postgres", test: "TestRoute_Unmatched",
	},
	{
		name: "rows that are written beside a join have another claim",
		file: "outbox/postgres/internal/router/join.go",
		old:  "			p.claim = rows[at].claim\n",
		new:  "			p.claim = &claim{id: group}\n",
		pkg:  "./outbox/postgres", test: "TestRoute_Joins$",
	},
	{
		name: "events are added to a leased row",
		file: "outbox/postgres/internal/router/route.go",
		old:  "group_id = r.joins AND state = 'waiting' AND lease_no = 0",
		new:  "group_id = r.joins",
		pkg:  "./outbox/postgres", test: "TestRoute_Joins$",
	},
	{
		name: "shared events are added to a row without a claim",
		file: "outbox/postgres/internal/router/join.go",
		old:  "(!d.Shared || p.shares(o))",
		new:  "(o.claim == nil || p.shares(o))",
		pkg:  "./outbox/postgres", test: "TestRoute_JoinsNone",
	},
}
