package httpsink

import (
	"testing"

	"github.com/itchyny/gojq"
)

func TestIgnoresEvents(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]bool{
		`[.body.errors[]? | {id: .context.id, error: .message}]`:                                                                        true,
		`if .status >= 400 then [] else [.body.failed[] | {id, error: .reason}] end`:                                                    true,
		`.body.items | to_entries | map(select(.value.error)) | map({index: .key, error: .value.error, retry: (.value.status == 429)})`: true,
		`[(.body // []) | .[]] + []`: true,
		`[.body[] | .events]`:        true,
		`.headers["x-a"]`:            true,
		`[.body[:10][] | {id}]`:      true,
		`[.events[] | {id}]`:         false,
		`.`:                          false,
		`..`:                         false,
		`.[]`:                        false,
		`to_entries`:                 false,
		`.["events"]`:                false,
		`. as $all | [.body[] | {id: $all.events[0]}]`:   false,
		`.body as $b | .events`:                          false,
		`if .status == 1 then .body end | .events`:       false,
		`if .body then 1 elif .events then 1 else 2 end`: false,
		`if .events then 1 else 2 end`:                   false,
		`select(.status == 1) | .events`:                 false,
		`.body = 1 | .events`:                            false,
		`.body |= 1 | .events`:                           false,
		`{events} | .events`:                             false,
		`{a: .events}`:                                   false,
		`"\(.events)"`:                                   false,
		`.body[.events | length]`:                        false,
		`.body["\(.events[0].id)"]`:                      false,
		`.body[:(.events | length)]`:                     false,
		`.body, .events`:                                 false,
		`def f: .events; f`:                              false,
		`tojson`:                                         false,
		`@json "\(.events)"`:                             false,
		`reduce .body[] as $x (.; . + 1)`:                false,
		`label $out | .events`:                           false,
		`getpath(["events"])`:                            false,
		`try .events`:                                    false,
		`-(.events | length)`:                            false,
	} {
		q, err := gojq.Parse(program)
		if err != nil {
			t.Fatalf("%s: %v", program, err)
		}
		if got := ignoresEvents(q); got != want {
			t.Errorf("%s: got %v, want %v", program, got, want)
		}
	}
}
