package jq

import "testing"

func TestPicks(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]int{
		".events[0]":                                            1,
		".events[0].payload":                                    1,
		".events[0] | {email: .payload.e}":                      1,
		`.events[0]["payload"] + {a: 1}`:                        1,
		".events[-1].payload":                                   1,
		".events | first | .payload":                            1,
		".events | last":                                        1,
		".events | .[0]":                                        1,
		".events | max_by(.id) | .payload":                      1,
		".events as $e | {a: $e[0].payload}":                    1,
		".events as $e | $e[0] | {$__loc__}":                    1,
		"first(.events[])":                                      1,
		"limit(1; .events[]) | .payload":                        1,
		"first(.events[] | select(.topic == \"a\") | .payload)": 1,
		"[.events[] | .payload][0]":                             1,
		"[.events[].payload] | first":                           1,
		".events | map(.payload) | .[0]":                        1,
		".events[0].payload + {id: .events[0].id, batch: .group_id, pipeline}":          1,
		"def one: .events[0]; one | .payload":                                           1,
		".events[0].payload.email // error(\"no email\")":                               1,
		"if .events[0].payload.gone then {gone: true} else .events[0].payload end":      1,
		".events[0].payload | to_entries | map(.value)":                                 1,
		".events[0].payload | with_entries(select(.value != null)) | del(.x)":           1,
		".events[0].payload.lines[] |= . + 1":                                           -1, // not followed
		"{key: $secret.KEY, mail: (\"\\(.events[0].payload.email)\" | ascii_downcase)}": 1,
		"try .events[0].payload catch {}":                                               1,
		".events | nth(0)":                                                              1,
		".events | nth(1) | .payload":                                                   1,
		"nth(2; .events[])":                                                             1,
		".events[-3:]":                                                                  3,
		"[.events[] | .payload.lines | nth(0)]":                                         -1,
		".events[:1]":                                                                   1,
		"{records: .events[0:10]}":                                                      10,
		"[limit(5; .events[] | .payload)]":                                              5,
		"[.events[0], .events[1]]":                                                      2,

		".": -1, ".events": -1, "{events}": -1, "..": -1, ".events[]": -1, "[.events[] | .payload]": -1, "[.events[]][1:]": -1,
		"{records: [.events[] | .payload + {external_id: .id}]}":                 -1,
		".events | map(.payload)":                                                -1,
		"{all: [.events[] | .payload], first: .events[0].id}":                    -1,
		"if .events[1] then error(\"one only\") else .events[0] end | .payload":  -1,
		"if (.events | length) > 1 then error(\"one only\") else .events[0] end": -1,
		"{text: \"\\(.events | length) events, first: \\(.events[0].id)\"}":      -1,
		"if any(.events[]; .key == null) then error(\"x\") else .events[0] end":  -1,
		"[.events | group_by(.key)[] | last | .payload]":                         -1,
		"[.events[] as $e | {v: $e.payload}]":                                    -1,
		"[range(.events | length) as $i | .events[$i].payload]":                  -1,
		"reduce .events[] as $e ({}; . + {($e.id): $e.payload})":                 -1,
		"reduce .events[1:][] as $e (.events[0]; . * $e)":                        -1,
		"[foreach .events[] as $e (0; . + 1; $e.payload)]":                       -1,
		".events |= map(.payload)":                                               -1,
		".first = .events[0]":                                                    -1,
		"{total: (.events | map(.payload.n) | add), first: .events[0]}":          -1,
		"def f(g): g; f(.events[0])":                                             -1,
		"{ref: \"main\"}":                                                        -1, // a call that starts something
		"{text: ([.events[].payload.text] | join(\" \"))}":                       -1,
		".events | [.[0], .[1:]]":                                                -1,
		"[.events | to_entries[] | .value.payload]":                              -1,
		"[.events[] | .payload.lines[0]]":                                        -1,
		"[.events[] | .payload.lines | first]":                                   -1,
		"[.events | group_by(.key)[] | .[0].payload]":                            -1,
		"def all: .events[], (.events[0] | all); [limit(9; all)]":                -1,
		". as {events: [$first]} | $first":                                       -1,
		"[.events[].payload] | tojson":                                           -1,
		"@json":                                                                  -1,
		"not a program (":                                                        -1,
	} {
		n, ok := Picks(program)
		if ok != (want > 0) || ok && n != want {
			t.Errorf("%s: got %d, %v; want %d", program, n, ok, want)
		}
	}
}

func TestFilters(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]string{
		"[.events[] | select(.payload.email)]":                                                 "select(.payload.email)",
		"[.events[] | select(.payload.email) | {id, email: .payload.email}]":                   "select(.payload.email)",
		"{records: [.events[] | .payload | select(.email)], batch: .group_id}":                 "select(.email)",
		".events | map(select(.topic == \"a\"))":                                               `select(.topic == "a")`,
		"{inputs: (.events | map(select(.key) | .payload))}":                                   "select(.key)",
		"[.events[] as $e | $e | select(.key) | {id: $e.id}]":                                  "select(.key)",
		".events[] | select(.key)":                                                             "select(.key)",
		"def kept: select(.key); [.events[] | kept]":                                           "select(.key)",
		"[.events[] | .payload // empty]":                                                      ".payload // empty",
		"[.events[] | if .key then .payload else empty end]":                                   "if .key then .payload else empty end",
		"[.events[] | {id, lines: [.payload.lines[] | select(.n > 0)]} | select(.id > \"5\")]": `select(.id > "5")`,

		".": "", "[.events[] | .payload]": "", ".events[0] | select(.key)": "", "[.events[] | .payload // {}]": "", "{n: (.events | length)}": "",
		"[.events[] | {id, tags: [.payload.tags[] | select(. != null)]}]":                          "",
		"[.events[] as $e | {id: $e.id, tags: [$e.payload.tags[] | select(.)]}]":                   "",
		"[.events[] | .payload | with_entries(select(.value != null))]":                            "",
		"[.events[] | .payload | map(select(.x))]":                                                 "",
		"[.events[] | .payload | del(.[] | select(. == null))]":                                    "",
		"[.events[] | {id, first: (first(.payload.tags[] | select(.a)) // null)}]":                 "",
		"[.events[] | (select(.key) | {k: .key}) // {id}]":                                         "",
		"[.events[] | if .key then select(.topic) else . end]":                                     "",
		"{new: [.events[] | select(.topic == \"n\")], old: [.events[] | select(.topic != \"n\")]}": "",
		"{all: ., some: [.events[] | select(.key)]}":                                               "",
		"{all: .events, some: [.events[] | select(.key)]}":                                         "",
		"[.events[] | .payload, (.payload | select(.copy))]":                                       "",
		"if any(.events[]; .key | not) then error(\"x\") else [.events[] | select(.key)] end":      "",
		"[.events[] | select(.key)] | .[0]":                                                        "select(.key)",
		"[.events[] | if .key then . else error(\"no key\") end]":                                  "",
		"[.events[] | select(if .key then true else empty end)]":                                   "select(if .key then true else empty end)",
		"[.events[] | any(.payload.tags[]; select(.))]":                                            "",
		"[.events | group_by(.key)[] | last]":                                                      "",
		"not a program (":                                                                          "",
	} {
		if got := Filters(program); got != want {
			t.Errorf("%s: got %q, want %q", program, got, want)
		}
	}
}

func TestCuts(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]string{
		".events | .[1:]":                       ".[1:]",
		".events[1:]":                           ".[1:]",
		"[.events[:-1][] | .payload]":           ".[:-1]",
		"[.events[1:-1][] | {id, d: .payload}]": ".[1:-1]",
		"[.events[]][2:]":                       ".[2:]",
		"{records: (.events | map(.payload) | .[1:]), batch: .group_id}": ".[1:]",
		"[skip(1; .events[])]":                 "skip(1; .events[])",
		".events | del(.[0])":                  "del(.[0])",
		".events | del(.[:2]) | map(.payload)": "del(.[:2])",

		".": "", ".events": "", ".events[0:]": "", ".events[:2]": "", ".events[0]": "", "[.events[] | .payload[1:]]": "",
		".events | [.[0], .[1:]]": "", "[.events[:-1], .events[1:]]": "", "{all: .events, rest: .events[1:]}": "",
		"reduce .events[1:][] as $e (.events[0]; . * $e)":            "",
		"if .events[1:] != [] then error(\"x\") else .events end":    "",
		"if (.events[1:] | length) > 0 then error(\"x\") else 1 end": "",
		"[.events[] | del(.[0])]":                                    "",
		".events | del(.[] | select(.key == null))":                  "",
		"{rest: .events[1:], n: (.events | length)}":                 "",
		"not a program (": "",
	} {
		if got := Cuts(program); got != want {
			t.Errorf("%s: got %q, want %q", program, got, want)
		}
	}
}
