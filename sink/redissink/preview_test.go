package redissink_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
)

// previewLines returns a preview as lines.
func previewLines(t *testing.T, cfg redissink.Config, b *buffer.Batch) ([]string, error) {
	t.Helper()
	cfg.URL = "redis://:secret@127.0.0.1:1" // no server; Preview does not connect
	all, err := opened(t, cfg).Preview(t.Context(), b)
	var lines []string
	for _, s := range all {
		lines = append(lines, fmt.Sprintf("%v %s %v", s.Events, s.Summary, s.Header))
		for line := range strings.SplitSeq(string(s.Body), "\n") {
			lines = append(lines, line)
		}
	}
	for _, line := range lines {
		if strings.Contains(line, "secret") {
			t.Errorf("the preview contains a secret: %s", line)
		}
	}
	return lines, err
}

func TestPreview(t *testing.T) {
	t.Parallel()
	b := newBatch("a", "b", "a")
	b.Events[0].Key, b.Events[0].Headers = new("k"), outbox.Headers(`{"h": "v"}`)
	b.Events[1].Key, b.DeadLetters = new("k"), []*buffer.DeadLetter{nil, {Error: "no"}, nil}
	why := string(sink.AppendDeadLetter(nil, b.DeadLetter(1)))
	id, group := ids(b), b.GroupID.String()
	deadLetter := "test:" + id[1] + ":dead:00000000-0000-0000-0000-000000000000"
	envelope := func(i int) string { return string(sink.AppendEnvelope(nil, b, i)) }
	for name, c := range map[string]struct {
		cfg  redissink.Config
		want []string
	}{
		"stream": {redissink.Config{Stream: "s:{topic}"}, []string{
			fmt.Sprintf(`[0] XADD s:a * [{id %s} {topic a} {key k} {payload {"n": 1}} {headers {"h": "v"}} {group_id %s}]`, id[0], group), "",
			fmt.Sprintf(`[2] XADD s:a * [{id %s} {topic a} {payload {"n": 1}} {group_id %s}]`, id[2], group), "",
			fmt.Sprintf(`[1] XADD s:b * [{id %s} {topic b} {key k} {payload {"n": 1}} {group_id %s} {dead_letter %s}]`, id[1], group, why), "",
		}},
		"list": {redissink.Config{Mode: redissink.List}, []string{
			"[0 2] RPUSH a []", envelope(0), envelope(2), "[1] RPUSH b []", envelope(1),
		}},
		"publish": {redissink.Config{Mode: redissink.Publish, Channel: "c"}, []string{
			"[0] PUBLISH c []", envelope(0), "[1] PUBLISH c []", envelope(1), "[2] PUBLISH c []", envelope(2),
		}},
		"asynq": {redissink.Config{Mode: redissink.Asynq, Queue: "{topic}", Class: "x:{topic}"}, []string{
			"[0 1 2] SADD asynq:queues a b []", "",
			fmt.Sprintf(`[0] LPUSH asynq:{a}:pending test:%[1]s [{type x:a} {id test:%[1]s} {queue a} {retry 25} {timeout 1800} {headers.h v}]`, id[0]), `{"n": 1}`,
			fmt.Sprintf(`[2] LPUSH asynq:{a}:pending test:%[1]s [{type x:a} {id test:%[1]s} {queue a} {retry 25} {timeout 1800}]`, id[2]), `{"n": 1}`,
			fmt.Sprintf(`[1] LPUSH asynq:{b}:pending %[1]s [{type x:b} {id %[1]s} {queue b} {retry 25} {timeout 1800} {headers.Relay-Dead-Letter %[2]s}]`, deadLetter, why), `{"n": 1}`,
		}},
	} {
		if got, err := previewLines(t, c.cfg, b); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, preview is\n%s\nwant\n%s", name, err, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}

	sidekiq, err := previewLines(t, redissink.Config{Mode: redissink.Sidekiq, Class: "Worker"}, b)
	if err != nil || len(sidekiq) != 6 || sidekiq[0] != "[0 1 2] SADD queues default []" || sidekiq[2] != "[0 1 2] LPUSH queue:default []" ||
		!strings.HasPrefix(sidekiq[3], fmt.Sprintf(`{"class":"Worker","args":[{"n": 1}],"queue":"default","jid":"%s","retry":true,"created_at":`, jidOf("test:"+id[0], b.Events[0].CreatedAt))) {
		t.Errorf("%v, preview is\n%s", err, strings.Join(sidekiq, "\n"))
	}
}

// Preview returns the rejected events along with the commands, also of a batch that is split.
func TestPreview_RejectedEvents(t *testing.T) {
	t.Parallel()
	b := newBatch("a", "", "b", "b")
	got, err := previewLines(t, redissink.Config{}, b)
	expectParts(t, err, sink.ErrPermanent, 1)
	if len(got) != 6 {
		t.Errorf("preview is %q", got)
	}
	large := []byte(`"` + strings.Repeat("x", 33<<20) + `"`)
	b.Events[0].Payload, b.Events[2].Payload = large, large
	b.Events[3].Topic = ""
	lists, err := opened(t, redissink.Config{URL: "redis://h", Mode: redissink.List}).Preview(t.Context(), b)
	expectParts(t, err, sink.ErrPermanent, 1, 3)
	if len(lists) != 2 || lists[1].Summary != "RPUSH b" || !slices.Equal(lists[1].Events, []int{2}) {
		t.Errorf("%d commands; want 2", len(lists))
	}
}
