package main

// The mutants, and for each the test that stands against it.
var mutants = []mutant{
	{
		name: "an outage counts as an attempt",
		file: "sink/judge.go",
		old:  "Attempts: b.Attempts, Outages: b.Outages + 1, Address: &address",
		new:  "Attempts: b.Attempts + 1, Outages: b.Outages + 1, Address: &address",
		pkg:  "./sink", test: "TestJudge",
	},
	{
		name: "void is left out",
		file: "sink/redissink/stream.lua",
		old:  "    mark(KEYS[i], 'void')\n",
		new:  "",
		pkg:  "./pipeline", test: "TestProtocol",
	},
}
