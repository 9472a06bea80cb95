package sqlite_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

func topicBytes(l *buffer.Lease) (n int) {
	for i := range l.Events {
		n += len(l.Events[i].Topic)
	}
	return n
}

// TestRoute_LongTopics: topics may be as long as payloads. A batch is routed, and sent, in no more bytes of them than a batch has, and by their
// beginnings.
func TestRoute_LongTopics(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		start, end := "a."+strings.Repeat("x", buffer.MatchedTopic), strings.Repeat("y", buffer.MaxBytes/5)+".z"
		b := openUnmatched(t, p, mode, buffer.UnmatchedError, buffer.Route{Sink: "all", BatchSize: 100}, buffer.Route{Sink: "a", Match: []string{"a.*"}, BatchSize: 100})
		testkit.NoError(t, b.RegisterSinks(t.Context()))
		short := []string{"1", "2", "3", "4", "5", "6"}
		insertTopics(t, p, short...)
		_, err := b.Claim(t.Context(), 100, lease) // and ends before it is routed
		testkit.NoError(t, err)
		exec(t, p.db, "UPDATE outbox_events SET topic = '"+start+"' || topic || '"+end+"'")
		var topics []string
		for _, topic := range short {
			topics = append(topics, start+topic+end)
		}
		for range 20 {
			exec(t, p.db, makeAllDue)
			batch, err := sqlite.TakeOverUnrouted(t.Context(), b)
			testkit.NoError(t, err)
			if batch == nil {
				break
			}
			if n := topicBytes(batch); n > buffer.MaxBytes {
				t.Errorf("%d bytes of topics were read for a route", n)
			}
			exec(t, p.db, makeAllDue)
			_, err = b.RouteDue(t.Context(), lease)
			testkit.NoError(t, err)
		}
		for _, sink := range []string{"all", "a"} {
			q, left := b.Sink(sink), slices.Clone(topics)
			for len(left) > 0 {
				batch, err := q.TakeOver(t.Context(), lease, buffer.DueRetry)
				testkit.NoError(t, err)
				if batch == nil {
					t.Fatalf("sink %s did not get %d events", sink, len(left))
				}
				switch n := topicBytes(batch); {
				case batch.NotRead != nil:
					var parts []buffer.Outcome
					for ids := range slices.Chunk(batch.IDs(), batch.PartSize) {
						parts = append(parts, buffer.Outcome{Verdict: buffer.Retry, IDs: ids, GroupID: buffer.NewGroupID()})
					}
					testkit.NoError(t, q.Settle(t.Context(), batch, parts))
					continue
				case n > buffer.MaxBytes:
					t.Errorf("a batch of sink %s has %d bytes of topics", sink, n)
				}
				for i := range batch.Events {
					at := slices.Index(left, batch.Events[i].Topic)
					if at < 0 {
						t.Fatal("an event arrives twice, or under another topic")
					}
					left = slices.Delete(left, at, at+1)
				}
				deliverAll(t, q, batch)
			}
		}
		expectEmpty(t, p)
		if n := countRows(t, p, "outbox_dead_letters"); n != 0 {
			t.Errorf("%d dead letters", n)
		}
	})
}
