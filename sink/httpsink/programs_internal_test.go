package httpsink

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/itchyny/gojq"

	"github.com/outboxrelay/relay/internal/jq"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

func TestDecodeEnvelope(t *testing.T) {
	t.Parallel()
	key, at := "k\"é", time.Date(2026, 1, 2, 3, 4, 5, 60_000, time.FixedZone("", 3600))
	b := &buffer.Batch{
		Events: []outbox.Event{
			{ID: 17, Topic: "a", Payload: []byte(`{"n": 1.10, "a": [true, null, "\u00e9"]}`), CreatedAt: at},
			{UUID: uuid.MustParse("018f3f43-0000-7000-8000-000000000001"), Topic: "b", Key: &key, Payload: []byte("\xff"), Headers: []byte(`{"h": "v"}`), CreatedAt: at},
			{ID: 1, Topic: "c", Payload: []byte(`"x"`)},
		},
		DeadLetters: []*buffer.DeadLetter{nil, nil, {Pipeline: "p", Attempts: 3, Error: "no", DiedAt: at}},
	}
	for i := range b.Events {
		want, err := jq.Decode(sink.AppendEnvelope(nil, b, i))
		testkit.NoError(t, err)
		got, err := decodeEnvelope(b, i)
		testkit.NoError(t, err)
		if diff := cmp.Diff(want, any(got)); diff != "" {
			t.Errorf("event %d: the envelope's JSON (-) and its value (+):\n%s", i, diff)
		}
	}
}

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
