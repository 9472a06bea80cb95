package jq

import (
	"strings"
	"testing"
)

func TestUnknownInRequest(t *testing.T) {
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
		if got := describeUnknown(UnknownInRequest(program)); got != want {
			t.Errorf("%s: got %q, want %q", program, got, want)
		}
	}
}

func TestUnknownInResults(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]string{
		"[.bodi.results[]? | select(.ok | not) | {id, error}]":                                   "answer bodi",
		"if .stauts >= 400 then [] else [.body.failed[] | {id, error}] end":                      "answer stauts",
		"[(.bodi.errors // [])[] | {id, error}]":                                                 "answer bodi",
		"[.bodi[]? | {id}]":                                                                      "answer bodi",
		"[.errors[]? | {id: .id}]":                                                               "answer errors",
		`[.["bodi"].errors[]? | {id}]`:                                                           "answer bodi",
		". as $r | [$r.bodi.errors[]? | {id}]":                                                   "answer bodi",
		"def failed: .bodi.errors; [failed[]? | {id}]":                                           "answer bodi",
		"if .header.ok == \"1\" then [] else error(\"\\(.Status)\") end":                         "answer header, answer Status",
		"[.event[]? | {id, error: \"all\"}]":                                                     "answer event",
		"[.events[] | {id: .uid, error: \"all\"}]":                                               "event uid",
		"[.events[] | select(.payload.kind == \"x\") | {id, error: .eror}]":                      "event eror",
		". as $a | [.events[] | {id, error: $a.bodi.message}]":                                   "answer bodi",
		"[.body.results[]? | select(.ok | not) | {id, error}]":                                   "",
		"[.body | to_entries[] | select(.value.ErrorCode != 0) | {index: .key}]":                 "",
		"if .status >= 400 then [] else [.body.errors[] | {index, error: .message}] end":         "",
		"if (.headers[\"content-type\"] // \"\") | test(\"html\") then error(\"x\") else [] end": "",
		"[(.body.errors // .body.failed // [])[] | {id: .uid, error: .why}]":                     "",
		".body |= (try fromjson catch {}) | [.body.bodi[]?, .bodi]":                              "",
		".body as {errors: $e} | [$e[]? | {id}]":                                                 "",
		". as {body: $b, events: $e} | [$b.bodi[]?]":                                             "",
		".body | [.bodi.stauts[]?]":                                                              "",
		"[.[\"body\"][] | {id: .externalId}]":                                                    "",
		". + {failed: .body.errors} | [.failed[]?]":                                              "",
		".failed = .body.errors | [.failed[]?]":                                                  "",
		"[.. | .errors? // empty | .[]]":                                                         "",
		"{body, status} | [.anything]":                                                           "",
		"[.events, (.body | .results)] | transpose | map(select(.[1].failed) | {id: .[0].id})":   "",
		"[]": "",
		"[.events[] | {id, error: .dead_letter.error, retry: true}]": "",
	} {
		if got := describeUnknown(UnknownInResults(program)); got != want {
			t.Errorf("%s: got %q, want %q", program, got, want)
		}
	}
}

func describeUnknown(all []UnknownMember) string {
	var texts []string
	for _, m := range all {
		if len(m.Known()) < 3 {
			texts = append(texts, "no members of")
		}
		_, of, _ := strings.Cut(m.Of, " ")
		texts = append(texts, of+" "+m.Name)
	}
	return strings.Join(texts, ", ")
}

func TestReadsStatus(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`[.body.errors[] | {index, error: .status}]`:                              false,
		`[.body[] | select(.status != "ok") | {id}]`:                              false,
		`. as $a | [$a.body.failed[] | {id, error: $a.body.status}]`:              false,
		`{status: 1} | [{index: 0, error: .status}]`:                              false,
		`if .status >= 400 then [] else [.body[] | {id}] end`:                     true,
		`. as $a | [.body[] | {id, error: "\($a.status)"}]`:                       true,
		`. as {$status} | []`:                                                     true,
		`[.body.errors[] as {$index, $status} | {index: $index, error: $status}]`: false,
		`. as {"status": $s} | []`:                                                true,
		`. as {status: $s} | []`:                                                  true,
		`def bad: .status > 399; [select(bad) | .events[] | {id}]`:                true,
		`[.["status"] | select(. == 422) | {index: 0}]`:                           true,
		`{status, body} as $a | [{index: 0, error: "\($a.body)"}]`:                true,
		`[.body | select(has("status")) | {index: 0, error: "no body"}]`:          false,
	} {
		query, err := parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := ReadsStatus(query); got != want {
			t.Errorf("%s: got %t, want %t", text, got, want)
		}
	}
}
