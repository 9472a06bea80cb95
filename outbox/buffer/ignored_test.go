package buffer_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestCustomTable_Ignored(t *testing.T) {
	t.Parallel()
	known := []string{"id", "payload", "topic", "key", "headers"}
	columns := []string{"id", "event_type", "tenant", "happened", "group_id"}
	for name, try := range map[string]struct {
		project  string
		returned []string
		fold     bool
		want     []string
	}{
		"None":       {"SELECT e.id, 1 AS payload, 'x' AS key FROM {events} e", []string{"id", "payload", "key"}, false, nil},
		"Own":        {"SELECT e.id, 1 AS payload, e.group_id, e.happened FROM {events} e", []string{"id", "payload", "group_id", "happened"}, false, nil},
		"Unknown":    {"SELECT e.id, 1 AS payload, e.event_type AS type, e.tenant, 2 AS header FROM {events} e", []string{"id", "payload", "type", "tenant", "header"}, false, []string{"type (did you mean topic?)", "tenant", "header (did you mean headers?)"}},
		"Case":       {`SELECT e.id, 1 AS payload, e.event_type AS "Topic" FROM {events} e`, []string{"id", "payload", "Topic"}, false, []string{"Topic (did you mean topic?)"}},
		"Folded":     {`SELECT e.id, 1 AS payload, e.event_type AS "Topic" FROM {events} e`, []string{"id", "payload", "Topic"}, true, nil},
		"Returned":   {"SELECT e.id, 1 AS payload, e.event_type, 'x' AS topic FROM {events} e", []string{"id", "payload", "event_type", "topic"}, false, []string{"event_type"}},
		"Comment":    {"SELECT e.id, 1 AS payload, row_number() OVER () AS rank FROM {events} e -- not sent: rank", []string{"id", "payload", "rank"}, false, nil},
		"OtherWords": {"SELECT e.id, 1 AS payload, 2 AS rank -- the rank\nFROM {events} e", []string{"id", "payload", "rank"}, false, []string{"rank"}},
		"Star":       {"SELECT e.*, p.*, 1 AS payload FROM {events} e JOIN p ON true", []string{"id", "event_type", "tenant", "happened", "group_id", "street", "payload"}, false, nil},
		"StarAlias":  {"SELECT e.*, 1 AS payload, e.event_type AS type FROM {events} e", []string{"id", "event_type", "payload", "type"}, false, []string{"type (did you mean topic?)"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			same := func(a, b string) bool { return a == b }
			if try.fold {
				same = strings.EqualFold
			}
			var got []string
			for _, c := range (buffer.CustomTable{ID: "id", CreatedAt: "happened", Project: try.project}).Ignored(try.returned, columns, known, same) {
				got = append(got, c.String())
			}
			if diff := cmp.Diff(try.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
