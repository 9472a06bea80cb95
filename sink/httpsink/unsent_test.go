package httpsink_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// keyed is a batch of events with these keys, whose payloads differ unless they are given.
func keyed(keys string, payloads ...string) *buffer.Batch {
	b := batch(strings.Fields(keys)...)
	for i, key := range strings.Fields(keys) {
		b.Events[i].Key, b.Events[i].Payload = &key, fmt.Appendf(nil, `{"n":%d}`, i)
		if payloads != nil {
			b.Events[i].Payload = []byte(payloads[i])
		}
	}
	return b
}

// TestUnsent: a program that leaves out events is found out by a preview, and by the first batches, whatever it is written like.
func TestUnsent(t *testing.T) {
	t.Parallel()
	server := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for program, c := range map[string]struct {
		events *buffer.Batch
		want   []int // indexes
	}{
		`.events | INDEX(.key) | map_values(.payload)`:        {keyed("a b a c"), []int{0}},
		`.events | unique_by(.key)`:                           {keyed("a b a c"), []int{2}},
		`[.events | group_by(.key)[] | last | .payload]`:      {keyed("a b a c"), []int{0}},
		`[.events[] | {(.key): .payload}] | add`:              {keyed("a b a c"), []int{0}},
		`reduce .events[] as $e ({}; .[$e.key] = $e.payload)`: {keyed("a b a c"), []int{0}},
		`"hello"`: {keyed("a b"), []int{0, 1}},
		`[.events[] | try (.payload.n | error) catch empty]`: {keyed("a b"), []int{0, 1}},
		`[.events[].payload]`:                                {keyed("a b a c"), nil},
		`.`:                                                  {keyed("a a a a"), nil},
		`{count: (.events | length)}`:                        {keyed("a b"), nil},
		`.events | map(.payload) | unique`:                   {keyed("a a", `{"n":1}`, `{"n":1}`), nil}, // one stands for both
		`.events | map(.payload) | add`:                      {keyed("a b", `{"n":1}`, ` { } `), nil},   // says nothing
		`{at: now, last: .events[-1].payload}`:               {keyed("a b"), nil},                       // never the same
		`if (.events | length) < 2 then error("one") else .events[0] end`: {keyed("a b"), nil}, // fails for one
		`.events[0]`: {keyed("a"), nil},
	} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			s := open(t, httpsink.Config{URL: server, Pipeline: "orders", Request: program})
			shown, err := s.Preview(testContext(t), c.events)
			if err != nil || len(shown) != 1 || !slices.Equal(shown[0].Unsent, c.want) {
				t.Fatalf("Preview = %+v, %v, want Unsent %v", shown, err, c.want)
			}
			if err := s.Send(testContext(t), c.events); err != nil {
				t.Fatal(err)
			}
			if c.want == nil {
				return
			}
			testkit.Eventually(t, func() error {
				if got := texts(s.Notices()); !strings.Contains(got, "makes the same request of ") || !strings.Contains(got, "first that with id "+c.events.Events[c.want[0]].Identity()+" at ") {
					return fmt.Errorf("the notices are %q", got)
				}
				return nil
			})
		})
	}
}

// TestUnsent_Limits: events that are left out on purpose are not looked for, nor those of large requests.
func TestUnsent_Limits(t *testing.T) {
	t.Parallel()
	large := keyed("a b", `"`+strings.Repeat("x", 1<<20+1)+`"`, "1")
	for _, c := range []struct {
		config httpsink.Config
		batch  *buffer.Batch
	}{
		{httpsink.Config{Request: `"hello"`, LeavesOut: true}, keyed("a b")},
		{httpsink.Config{Request: `.events[0].payload`}, large},
		{httpsink.Config{Request: `"hello"`, MaxBytes: 10}, keyed("a")},
	} {
		c.config.URL, c.config.Pipeline = "http://127.0.0.1:9", "orders"
		shown, err := open(t, c.config).Preview(testContext(t), c.batch)
		if err != nil || len(shown) != 1 || shown[0].Unsent != nil {
			t.Errorf("Preview with %+v has %d messages, Unsent of the first %v, %v", c.config, len(shown), shown[0].Unsent, err)
		}
	}
}
