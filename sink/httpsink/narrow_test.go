package httpsink

import (
	"testing"

	"github.com/itchyny/gojq"
)

func TestProgramsThatLookAtTheAnswerAlone(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]bool{
		`[.body.errors[]? | {id: .context.id, error: .message}]`:                                                                        true,
		`if .status >= 400 then [] elif .headers["x-a"] then [] else [.body.failed[]] end`:                                              true,
		`.body.items | to_entries | map(select(.value.error)) | map({index: .key, error: .value.error, retry: (.value.status == 429)})`: true,
		`.body as $b | [$b.errors[$b.from:][] | {id: "\($b.prefix)\(.id)"}]`:                                                            true,
		`[.body[] | .events]`:                 true,
		`{status, a: .body} | [.a]`:           true,
		`try .body.x catch error("no")`:       true,
		`reduce .body[] as $x ([]; . + [$x])`: true,
		`[(.body // []) | .[]] + []`:          true,
		`error(.body.message)`:                true,
		`empty`:                               true,
		`-(.status)`:                          true,
		`[.events[] | {id}]`:                  false,
		`.`:                                   false,
		`..`:                                  false,
		`. as $all | [.body[] | {id: $all.events[0]}]`: false,
		`to_entries`:  false,
		`.["events"]`: false,
		`.["body"]`:   false, // nobody writes so
		`.[]`:         false,
		`if .status == 1 then .body end | .events`:       false,
		`select(.status == 1) | .events`:                 false,
		`.body = 1 | .events`:                            false,
		`.body |= 1 | .events`:                           false,
		`{events} | .events`:                             false,
		`{a: .events}`:                                   false,
		`{(.events[0].id): 1}`:                           false,
		`{"\(.events)": 1}`:                              false,
		`"\(.events)"`:                                   false,
		`.body[.events | length]`:                        false,
		`.body["\(.events[0].id)"]`:                      false,
		`.body[:(.events | length)]`:                     false,
		`.body, .events`:                                 false,
		`.body as $b | .events`:                          false,
		`.body as {(.events): $b} | $b`:                  false,
		`.body as [$b] ?// $b | $b`:                      false,
		`def f: .events; f`:                              false,
		`tojson`:                                         false,
		`@json`:                                          false,
		`@json "\(.events)"`:                             false,
		`reduce .events[] as $x (0; . + 1)`:              false,
		`reduce .body[] as $x (.; . + 1)`:                false,
		`foreach .body[] as $x (.; .; .events)`:          false,
		`label $out | .events`:                           false,
		`[limit(1; .events[])]`:                          false,
		`getpath(["events"])`:                            false,
		`.body | input`:                                  true, // is refused elsewhere
		`if .events then 1 else 2 end`:                   false,
		`if .body then 1 elif .events then 1 else 2 end`: false,
		`try .events`:                                    false,
		`-(.events | length)`:                            false,
		`error(.events)`:                                 false,
		`.body | . as $x | $x.events`:                    true,
		`$__loc__`:                                       true,
	} {
		q, err := gojq.Parse(program)
		if err != nil {
			t.Fatalf("%s: %v", program, err)
		}
		if got := isNarrow(q); got != want {
			t.Errorf("%s: got %v, want %v", program, got, want)
		}
	}
}
