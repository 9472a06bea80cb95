package buffertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// RoutedBuffer is a buffer with several sinks.
type RoutedBuffer interface {
	buffer.Buffer
	buffer.Router
	buffer.SinkRegistry
	buffer.SinkFiller
	buffer.Archiver
}

// SinksHarness describes a kind of buffer with several sinks to [RunSinks].
type SinksHarness struct {
	// Open makes a migrated database or file with an empty buffer table of the relay's own, and an archive.
	Open func(t *testing.T) *SinksFixture
}

// SinksFixture is a database with a buffer table.
type SinksFixture struct {
	// Buffer opens the buffer of another process, with its archive; without routes it has a single sink. Events that no sink takes are kept; with
	// Strict they become dead letters.
	Buffer, Strict func(t *testing.T, claim buffer.ClaimMode, routes ...buffer.Route) RoutedBuffer
	// Single opens it for a single sink, which keeps order by key or none.
	Single func(t *testing.T, claim buffer.ClaimMode, ordered bool) buffer.Buffer
	// Exec runs one statement that every database understands.
	Exec func(t *testing.T, statement string)
	// IDs returns the integers of a query.
	IDs func(t *testing.T, query string) []int64
}

// RunSinks checks what buffers with several sinks owe: the order of keys in each sink, and fills.
func RunSinks(t *testing.T, h SinksHarness) {
	for _, c := range slices.Concat(sinksOrderCases, fillCases, sinksArchiveCases, sinksEditCases, sinksIDCases, sinksDivideCases, sinksPauseCases, sinksHistoryCases, sinksMatchCases) {
		modes := []buffer.ClaimMode{buffer.ClaimRange, buffer.ClaimStamp}
		if c.ordered {
			modes = []buffer.ClaimMode{buffer.ClaimAuto}
		}
		for _, mode := range modes {
			t.Run(c.name+"/"+string(mode), func(t *testing.T) {
				t.Parallel()
				c.run(t, &sinksCase{h.Open(t), mode})
			})
		}
	}
}

// sinksTestCase is one rule. ordered: it keeps order by key, which has a claim mode of its own.
type sinksTestCase struct {
	name    string
	ordered bool
	run     func(t *testing.T, p *sinksCase)
}

// sinksCase is a database and how its buffers claim.
type sinksCase struct {
	*SinksFixture
	mode buffer.ClaimMode
}

// open opens a buffer and registers its sinks.
func (p *sinksCase) open(t *testing.T, routes ...buffer.Route) RoutedBuffer {
	t.Helper()
	b := p.Buffer(t, p.mode, routes...)
	ok(t, "RegisterSinks", b.RegisterSinks(t.Context()))
	return b
}

func (p *sinksCase) count(t *testing.T, table string) int64 {
	t.Helper()
	return p.IDs(t, "SELECT count(*) FROM "+table)[0]
}

func (p *sinksCase) topics(t *testing.T, topics ...string) {
	t.Helper()
	for _, topic := range topics {
		p.Exec(t, "INSERT INTO outbox_events (topic, payload) VALUES ('"+topic+"', '{}')")
	}
}

// keys inserts an event for each key; "" stands for NULL.
func (p *sinksCase) keys(t *testing.T, keys ...string) {
	t.Helper()
	for _, key := range keys {
		p.Exec(t, "INSERT INTO outbox_events (topic, key, payload) VALUES ('contact.new', nullif('"+key+"', ''), '{}')")
	}
}

// due makes all batches of a condition due, and ends their leases.
func (p *sinksCase) due(t *testing.T, where string) {
	t.Helper()
	p.Exec(t, "UPDATE outbox_batches SET due_at = '2026-01-01T00:00:00.000Z' WHERE "+where)
}

func (p *sinksCase) expectEmpty(t *testing.T) {
	t.Helper()
	equal(t, "events and batches left", p.count(t, "outbox_events")+p.count(t, "outbox_batches"), int64(0))
}

func takeNone(string) bool { return false }

// routeTo routes one claim to these sinks, of which this process takes nothing.
func routeTo(t *testing.T, b RoutedBuffer, sinks string) {
	t.Helper()
	routed, err := b.Route(t.Context(), 100, time.Hour, takeNone)
	ok(t, "Route", err)
	if routed == nil || fmt.Sprint(routed.Sinks) != sinks {
		t.Fatalf("routed %+v, want to %s", routed, sinks)
	}
}

func deliver(t *testing.T, b RoutedBuffer, sink string, batch *buffer.Lease) {
	t.Helper()
	ok(t, "Settle", b.Sink(sink).Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
}

// retryTail delivers the first event of a batch and retries the others as a part.
func retryTail(batch *buffer.Lease) []buffer.Outcome {
	ids := batch.IDs()
	return []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: ids[:1]},
		{Verdict: buffer.Retry, IDs: ids[1:], GroupID: buffer.NewGroupID(), Attempts: 1, Error: "no"},
	}
}

// takeOf takes over a batch of a sink, and returns its topics.
func takeOf(t *testing.T, b RoutedBuffer, sink string) (*buffer.Lease, string) {
	t.Helper()
	batch, err := b.Sink(sink).TakeOver(t.Context(), time.Hour, buffer.DueRetry)
	ok(t, "TakeOver", err)
	if batch == nil {
		return nil, ""
	}
	var topics []string
	for i := range batch.Events {
		topics = append(topics, batch.Events[i].Topic)
	}
	return batch, strings.Join(topics, " ")
}

// expectDrained delivers all that is due for a sink, and expects these topics in this order.
func expectDrained(t *testing.T, b RoutedBuffer, sink, want string) {
	t.Helper()
	var got []string
	for {
		batch, topics := takeOf(t, b, sink)
		if batch == nil {
			equal(t, "topics that "+sink+" got", strings.Join(got, " "), want)
			return
		}
		got = append(got, topics)
		deliver(t, b, sink, batch)
	}
}
