//go:build unix

package chaos

import (
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// streamMadeAgain: a JetStream stream is deleted while events are published to it, and made
// again. What it had acknowledged is gone with it and is the broker's loss; every other
// event must reach the new stream. The new one knows no id, so an event whose PubAck was
// under way may be in both, but in neither of them twice.
func (x *trial) streamMadeAgain() {
	server := testserver.NATS(x)
	conn, err := nats.Connect(server.URL)
	testkit.NoError(x, err)
	x.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	testkit.NoError(x, err)
	config := jetstream.StreamConfig{Name: streamName, Subjects: []string{"shop.>"}, AllowBatchPublish: true}
	stream, err := js.CreateStream(x.Context(), config)
	testkit.NoError(x, err)
	count := func() int64 {
		info, err := stream.Info(x.Context())
		testkit.NoError(x, err)
		return int64(info.State.Msgs)
	}

	from := x.postgres(testserver.Postgres(x))
	yaml := pipeline(from, `{url: "`+server.URL+`", subject: "{topic}"}`)
	relays := []*relay{x.start("one", yaml), x.start("two", yaml)}
	arrived := map[int64]int{}
	for range x.rounds(2) {
		from.during(600, count, func() {
			// Without its subjects the stream stores nothing more, so what is read now is exactly
			// what it ever acknowledged.
			held := config
			held.Subjects = []string{"held"}
			stream, err = js.UpdateStream(x.Context(), held)
			testkit.NoError(x, err)
			for id := range x.stored(stream) {
				arrived[id] = 1
			}
			testkit.NoError(x, js.DeleteStream(x.Context(), streamName))
			x.again(relays[0])
		}, "shop.orders", "shop.refunds")
		stream, err = js.CreateStream(x.Context(), config)
		testkit.NoError(x, err)
		from.drained()
	}
	x.end(relays...)
	for id := range x.stored(stream) {
		arrived[id] = 1
	}
	from.account(arrived, false)
	if len(arrived) == 0 || len(x.stored(stream)) == len(arrived) {
		x.Error("the deleted streams had no event that the last one has not")
	}
}

// stored returns the ids in a stream, and checks that none is there twice.
func (x *trial) stored(stream jetstream.Stream) map[int64]bool {
	x.Helper()
	info, err := stream.Info(x.Context())
	testkit.NoError(x, err)
	found := map[int64]int{}
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq && info.State.Msgs > 0; seq++ {
		m, err := stream.GetMsg(x.Context(), seq)
		testkit.NoError(x, err)
		id, err := eventID(m.Header)
		testkit.NoError(x, err)
		found[id]++
	}
	ids := map[int64]bool{}
	for id, times := range found {
		if ids[id] = true; times > 1 {
			x.Errorf("event %d is %d times in one stream", id, times)
		}
	}
	return ids
}

// eventID returns the id of an event from Nats-Msg-Id, <pipeline>:<id> and maybe more.
func eventID(h nats.Header) (int64, error) {
	_, rest, _ := strings.Cut(h.Get("Nats-Msg-Id"), ":")
	id, _, _ := strings.Cut(rest, ":")
	return parseID(id)
}
