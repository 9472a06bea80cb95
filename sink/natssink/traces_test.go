package natssink_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
)

// An event whose message the context of the send makes too large arrives without it, in the same send; the others carry it.
func TestSend_TooLargeWithTrace(t *testing.T) {
	t.Parallel()
	const most = 1000
	for name, c := range map[string]struct {
		stream jetstream.StreamConfig
		server func(*server.Options)
	}{
		"for the server":          {server: func(o *server.Options) { o.MaxPayload = most }},
		"for the stream":          {stream: jetstream.StreamConfig{MaxMsgSize: most}, server: func(*server.Options) {}},
		"for the stream, in bulk": {stream: jetstream.StreamConfig{MaxMsgSize: most, AllowBatchPublish: true}, server: func(*server.Options) {}},
		"for the server, in bulk": {stream: jetstream.StreamConfig{AllowBatchPublish: true}, server: func(o *server.Options) { o.MaxPayload = most }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newFixture(t, c.stream, c.server)
			b := batch("orders.a", "orders.a", "orders.a", "orders.a")
			b.PayloadIsJSON = false
			b.Events[1].Payload = bytes.Repeat([]byte("7"), 830) // about 980 bytes with its headers
			b.Events[2].Headers = outbox.Headers(`{"traceparent":"own"}`)
			ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
				TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
			}))
			testkit.NoError(t, o.sink.Send(ctx, b))
			const sent = "00-01000000000000000000000000000000-0200000000000000-01"
			want := map[string]string{"1": sent, "2": "", "3": "own", "4": sent}
			for n := range 4 {
				m, err := o.stream.GetMsg(t.Context(), uint64(n+1))
				testkit.NoError(t, err)
				id := strings.Split(m.Header.Get("Nats-Msg-Id"), ":")[1]
				testkit.Equal(t, "traceparent of event "+id, m.Header.Get("traceparent"), want[id])
				delete(want, id)
			}
			b.FirstSend = false // by chance under another span: still duplicates
			testkit.NoError(t, o.sink.Send(ctx, b))
			info, err := o.stream.Info(t.Context())
			testkit.NoError(t, err)
			testkit.Equal(t, "messages", info.State.Msgs, 4)
		})
	}
}
