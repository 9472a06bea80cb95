package jq

import "testing"

func TestIgnores(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]bool{
		"[.events[].payload]":                                                                   true,
		"[.events[] | .payload + {external_id: .id}]":                                           true,
		"{records: (.events | map(.payload))}":                                                  true,
		"[.events[] as $e | {v: $e.payload, headers: {a: 1}}]":                                  true,
		"[.events[] as {payload: $p} | $p]":                                                     false, // not followed, as in rare cases
		".events[] | {topic, payload}":                                                          true,
		"def one: .payload; [.events[] | one]":                                                  true,
		"if .events[1] then error(\"two\") else .events[0] end | .payload":                      true,
		`{text: ([.events[] | "\(.topic) \(.payload | tojson)"] | join(" "))}`:                  true,
		"{inputs: [.events | group_by(.payload.email // error(\"none\"))[] | last | .payload]}": true,

		".": false, ".events": false, "{events}": false, "{data: .events}": false, "..": false, "[.events[] | tojson]": false,
		"[.events[] | .payload + {h: .headers}]":             false,
		"[.events[] | {payload, headers}]":                   false,
		`[.events[] | .payload + {h: .["headers"]}]`:         false,
		"[.events[] | del(.id)]":                             false,
		"[.events[] | .payload, .]":                          false,
		"[.events[] as $e | $e]":                             false,
		"[.events[] | with_entries(select(.key != \"id\"))]": false,
		"[.events[] | .payload.x = 1]":                       false,
		`[.events[] | "\(.)"]`:                               false,
		"def one: .; [.events[] | one]":                      false,
		"def f(g): g; [.events[] | f(.)]":                    false,
		"[.events[] | if .key then .payload else . end]":     false,
		"[.events[] | if .key then .payload end]":            false,
		"reduce .events[] as $e ({}; . + {($e.id): $e})":     false,
		"not a program (":                                    false,
	} {
		if got := Ignores(program, "headers"); got != want {
			t.Errorf("%s: got %v, want %v", program, got, want)
		}
	}
	if Ignores("[.events[] | {topic, v: .payload}]", "topic") || !Ignores("[.events[] | {topic, v: .payload}]", "key") {
		t.Error("only what is named is sent")
	}
}
