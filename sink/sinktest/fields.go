package sinktest

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

func oneEvent(t *testing.T, h Harness, d Destination) {
	s := connect(t, d)
	b := newBatch(1, nil)
	accountOf(mustDeliver(t, s, b)...).exactly(t, h, d)
}

func thousandEvents(t *testing.T, h Harness, d Destination) {
	s := connect(t, d)
	sent := accountOf(mustDeliver(t, s, newBatch(1000, nil))...)
	sent.exactly(t, h, d)
	sent.inOrder(t, d)
}

// fields also checks that Send does not change the batch.
func fields(t *testing.T, h Harness, d Destination) {
	keys := []*string{
		nil, new(""), new("customer-7"), new("0"), new(`a "quoted" \ key`),
		new("Ключ é ☃ 𝄞"), new("a\tb"), new("{topic}"), new("NULL"), new("a/b?c=d&e#f%20"),
	}
	headers := []outbox.Headers{
		nil, outbox.Headers(`{}`), outbox.Headers(`{"trace": "00-abc"}`),
		outbox.Headers(`{"b": "2",  "a": "1", "Content-Type": "text/plain; q=\"x\""}`),
		outbox.Headers(`{"unicode":"gr\u00fc\u00dfe ☃ 𝄞","empty":""}`),
		outbox.NewHeaders(map[string]string{"x-Mixed-CASE": "kept", "slash": `\`}),
	}
	if h.Keeps.AnyText {
		keys = append(keys, new(" blanks "), new("two\nlines"), new("two\r\nlines"), new("control \x01 \x1f \x7f"))
		headers = append(headers,
			outbox.Headers(`{"two words":"two\nlines", "blanks":" x ", "":"no name", "colon: ":"\u0001"}`),
			outbox.Headers("{\n  \"pretty\": \"printed\"\r\n}"))
	}
	topics := []string{"orders", "a.b.c", "UPPER", "dash-and_underscore"}
	if !h.Keeps.ASCIITopics {
		topics = append(topics, "größe")
	}
	n := len(keys) * len(headers)
	b := newBatch(n, func(i int, e *outbox.Event) {
		e.Key = keys[i%len(keys)]
		e.Headers = headers[i/len(keys)]
		e.Topic = TopicPrefix + topics[i%len(topics)]
	})
	before := clone(b)
	parts := mustDeliver(t, connect(t, d), b)
	if diff := cmp.Diff(before, b); diff != "" {
		t.Errorf("Send changed the batch (-before +after):\n%s", diff)
	}
	accountOf(parts...).exactly(t, h, d)
}

// otherTopics checks that topics which the destination cannot take are rejected for good, and hold up no others.
func otherTopics(t *testing.T, h Harness, d Destination) {
	if !h.Keeps.ASCIITopics {
		return
	}
	b := newBatch(3, func(i int, e *outbox.Event) {
		if i == 1 {
			e.Topic = TopicPrefix + "größe"
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), sendTimeout)
	defer cancel()
	s := connect(t, d)
	err := s.Send(ctx, b)
	rejected, delivered := map[int]error{}, b.Part([]int{0, 2})
	delivered.GroupID = b.GroupID
	if split, ok := errors.AsType[*sink.SplitError](err); ok {
		for _, g := range split.Groups {
			if g.Err == nil {
				delivered = part(b, g.Indexes...)
				if err := s.Send(ctx, delivered); err != nil {
					t.Fatalf("Send of the others: %v", err)
				}
				continue
			}
			for _, i := range g.Indexes {
				rejected[i] = g.Err
			}
		}
	} else if of, ok := errors.AsType[*sink.BatchError](err); ok {
		for _, e := range of.Events {
			rejected[e.Index] = e.Err
		}
	}
	if len(rejected) != 1 || !errors.Is(rejected[1], sink.ErrPermanent) || errors.Is(rejected[1], sink.ErrUnavailable) {
		t.Fatalf("Send of an event with the topic %q among others: got %v; want it rejected for good, and no other", b.Events[1].Topic, err)
	}
	accountOf(delivered).exactly(t, h, d)
}

func clone(b *buffer.Batch) *buffer.Batch {
	c := *b
	c.Events = make([]outbox.Event, len(b.Events))
	for i, e := range b.Events {
		if e.Key != nil {
			e.Key = new(*e.Key)
		}
		e.Payload = append([]byte{}, e.Payload...)
		if e.Headers != nil {
			e.Headers = append(outbox.Headers{}, e.Headers...)
		}
		c.Events[i] = e
	}
	return &c
}

func jsonPayloads(t *testing.T, h Harness, d Destination) {
	payloads := []string{
		`{}`, `[]`, `null`, `true`, `"text"`, `""`, `0`, `-0.0`,
		`12345678901234567890123`,
		`{"big": 18446744073709551617, "precise": 0.1000000000000000000000000001, "far": 1e400}`,
		`{"a": 1,  "b" :2 }`,
		`{"a": 1, "a": 2}`,
		`{"quote": "\"\\\/", "lines": "\r\n", "escaped": "\u00e9\ud834\udd1e\u0000", "plain": "é☃𝄞"}`,
		"{\n  \"pretty\": [\r\n\t1\n  ]\n}",
		`{"</script>": "<&>", "separators": "` + "\u2028\u2029" + `"}`,
	}
	b := newBatch(len(payloads), func(i int, e *outbox.Event) { e.Payload = []byte(payloads[i]) })
	accountOf(mustDeliver(t, connect(t, d), b)...).exactly(t, h, d)
}

func opaquePayloads(t *testing.T, h Harness, d Destination) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	payloads := [][]byte{
		every,
		{},
		{0},
		[]byte("\n"), []byte("plain text"), []byte(`{"json": true}`), []byte(`{"half": `),
		[]byte("\"invalid \xff utf-8\""), []byte("\xef\xbb\xbf{}"),
	}
	b := newBatch(len(payloads), func(i int, e *outbox.Event) { e.Payload = payloads[i] })
	b.PayloadIsJSON = false
	accountOf(mustDeliver(t, connect(t, d), b)...).exactly(t, h, d)
}

func manyTopics(t *testing.T, h Harness, d Destination) {
	b := newBatch(500, func(i int, e *outbox.Event) { e.Topic = topicNo(i * 7 % 50) })
	accountOf(mustDeliver(t, connect(t, d), b)...).exactly(t, h, d)
}
