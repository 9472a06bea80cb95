package jq

import (
	"fmt"
	"testing"
)

func TestUnknownMembers(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]string{
		"[.events[] | {id: .id, data: .paylod}]": "event paylod",
		"[.events[].paylod]":                     "event paylod",
		"[.evnts[] | .payload]":                  "body evnts",
		".events | map({id, paylod})":            "event paylod",
		".events[0].data":                        "event data",
		`.events[0]["data"]`:                     "event data",
		`[.events[] | ."data"]`:                  "event data",
		"[.events[] as $e | {v: $e.paylod, w: $e.payload.anything}]":          "event paylod",
		"[.events[] | select(.topik == \"a\") | .payload]":                    "event topik",
		"def one: .paylod; [.events[] | one]":                                 "event paylod",
		"[.events | group_by(.kee)[] | last | .payload]":                      "event kee",
		"[.events | group_by(.key)[] | last | .paylod]":                       "event paylod",
		`{text: ([.events[] | "\(.topik) \(.paylod | tojson)"] | join(" "))}`: "event topik, event paylod",
		"if .events[1] then error(\"two\") else .events[0] end | .body":       "event body",
		"reduce .events[] as $e ({}; . + {($e.id): $e.data})":                 "event data",
		"[.events[] | .payload + {x: .Key}]":                                  "event Key",
		"{id: .groupid, all: .events}":                                        "body groupid",
		"[.events[] | if .headers.vip then .data else .payload end]":          "event data",
		".events |= map({d: .data})":                                          "event data",
		"[.events[] | .paylod, .paylod]":                                      "event paylod",
		".":                                                                   "",
		"[.events[] | .payload_base64 // .payload | .anything]":               "",
		"[.events[] | .data // .payload]":                                     "",
		"[.events[] | {id, topic, key, payload, headers, created_at}]":        "",
		"{group_id, pipeline, n: (.events | length)}":                         "",
		"[.events[] | .extra = 1 | .extra]":                                   "",
		"[.events[] | . + {extra: 1} | .extra]":                               "",
		"[.events[] | {extra: .id} | .extra]":                                 "",
		"[.events[] | del(.extra)]":                                           "",
		"[.events[] | has(\"extra\")]":                                        "",
		"[.events[] | .payload as {a: $a} | {a: $a}]":                         "",
		"[.events[] | with_entries(select(.key != \"id\"))]":                  "",
		"[.events[] | to_entries[] | .value]":                                 "",
		"[.events[].payload | .paylod]":                                       "",
		"[.events[] | .dead_letter.error]":                                    "",
		"def f(g): g; [.events[] | f(.extra)]":                                "",
		"def map(f): .; .events | map(.extra)":                                "",
		"{data: [.events[] | {type: .topic}]} | .data[0].type":                "",
		"[.. | .extra?]":                                                      "",
		"def a: a, .events; a":                                                "",
		"not a program (":                                                     "",
	} {
		got := ""
		for i, m := range UnknownMembers(program) {
			if i > 0 {
				got += ", "
			}
			got += fmt.Sprintf("%s %s", map[bool]string{true: "event", false: "body"}[m.Event], m.Name)
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", program, got, want)
		}
	}
}
