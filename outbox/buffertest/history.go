package buffertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var historyCases = []testCase{
	{name: "history/parts inherit it, and the dead letter has it", run: historyOfParts},
	{name: "history/has the first and the last of many attempts", run: historyOfMany},
	{name: "history/one that is not understood is empty", run: historyUnknown},
	{name: "history/an accepted batch has none", run: historyNone},
	{name: "history/the halves of a batch that an operator divides have it", run: historyOfHalves},
}

// tried makes an outcome one of a batch that was sent.
func tried(o buffer.Outcome, why string) buffer.Outcome {
	o.Tried, o.Error = true, why
	return o
}

// sameHistory compares a history but for its times and relays, which are there.
func sameHistory(t *testing.T, of string, got buffer.History, want ...buffer.Attempt) {
	t.Helper()
	var plain []buffer.Attempt
	for _, a := range got {
		about(t, of+": at", time.Since(a.At), 0)
		if a.Relay == "" {
			t.Errorf("%s: an attempt names no relay: %+v", of, a)
		}
		a.At, a.Relay = time.Time{}, ""
		plain = append(plain, a)
	}
	equal(t, of, plain, want)
}

func historyOfParts(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(3)...)
	b := claim(t, f.Buffer, 10)
	sameHistory(t, "history of a claim", b.History)
	const whole, half, alone = `500 "größe" 🙂`, "422 one of these", "422 this one\nfor good"
	want := []buffer.Attempt{{Error: whole, GroupID: b.GroupID, Events: 3}}
	settle(t, f.Buffer, b, tried(retry(b, lease), whole))
	f.ExpireLease(t, b.GroupID, 0)
	b = takeOver(t, f.Second(t))
	sameHistory(t, "history of a retry", b.History, want...)

	ids, part := b.IDs(), buffer.NewGroupID()
	want = append(want, buffer.Attempt{Error: half, GroupID: b.GroupID, Events: 3})
	settle(t, f.Buffer, b, delivered(ids[0]), tried(buffer.Outcome{Verdict: buffer.Retry, IDs: ids[1:], GroupID: part, After: lease, Attempts: 1}, half))
	f.ExpireLease(t, part, 0)
	b = takeOver(t, f.Buffer)
	sameHistory(t, "history of a part", b.History, want...)

	deferred := retry(b, lease)
	deferred.Error = "deferred: the sink is away"
	settle(t, f.Buffer, b, deferred)
	f.ExpireLease(t, part, 0)
	b = takeOver(t, f.Buffer)
	sameHistory(t, "history of what was only put off", b.History, want...)

	ids = b.IDs() // those of a custom table may have new numbers
	want = append(want, buffer.Attempt{Error: alone, GroupID: part, Events: 2})
	settle(t, f.Buffer, b, delivered(ids[0]), tried(buffer.Outcome{Verdict: buffer.Dead, IDs: ids[1:], Attempts: 2}, alone))
	dead, err := f.Buffer.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
	ok(t, "ListDead", err)
	equal(t, "dead letters", len(dead), 1)
	sameHistory(t, "history of a dead letter", dead[0].History, want...)
	empty(t, f)
}

func historyOfMany(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(1)...)
	b := claim(t, f.Buffer, 10)
	const last = buffer.MaxHistory + 4
	for i := range last {
		settle(t, f.Buffer, b, tried(retry(b, 0), fmt.Sprintf("try %d %s", i+1, strings.Repeat("ö", 10_000))))
		b = takeOver(t, f.Buffer)
	}
	equal(t, "attempts that are kept", len(b.History), buffer.MaxHistory)
	for i, a := range b.History {
		n, omitted := i+1, 0
		if i > 0 {
			n += last - buffer.MaxHistory
		}
		if i == 1 {
			omitted = last - buffer.MaxHistory
		}
		equal(t, "attempt", []any{strings.HasPrefix(a.Error, fmt.Sprintf("try %d ", n)), a.Omitted}, []any{true, omitted})
		if len(a.Error) > buffer.MaxAttemptError {
			t.Errorf("the error has %d bytes", len(a.Error))
		}
	}
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
}

// historyUnknown has rows that another version wrote, or none did.
func historyUnknown(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(1)...)
	b := claim(t, f.Buffer, 10)
	for _, value := range []string{"NULL", "''", "'{}'", "'not JSON'"} {
		settle(t, f.Buffer, b, retry(b, 0))
		f.Exec(t, "UPDATE outbox_batches SET history = "+value)
		b = takeOver(t, f.Buffer)
		sameHistory(t, "history from "+value, b.History)
	}
	group := b.GroupID
	settle(t, f.Buffer, b, tried(buffer.Outcome{Verdict: buffer.Dead, Attempts: 1}, "no"))
	for _, value := range []string{"NULL", "'not JSON'"} {
		f.Exec(t, "UPDATE outbox_dead_letters SET history = "+value)
		dead, err := f.Buffer.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
		ok(t, "ListDead", err)
		equal(t, "dead letter", []any{len(dead), dead[0].GroupID, len(dead[0].History)}, []any{1, group, 0})
	}
}

func historyOfHalves(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(2)...)
	b := claim(t, f.Buffer, 10)
	settle(t, f.Buffer, b, tried(retry(b, lease), "400 one of these"))
	ok(t, "DivideBatch", f.Second(t).DivideBatch(t.Context(), b.GroupID, true))
	for range 2 {
		half := takeOver(t, f.Buffer)
		sameHistory(t, "history of a half", half.History, buffer.Attempt{Error: "400 one of these", GroupID: b.GroupID, Events: 2})
	}
}

func historyNone(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(1)...)
	b := claim(t, f.Buffer, 10)
	settle(t, f.Buffer, b, tried(retry(b, 0), "busy"))
	settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
	bury(t, f, "refused", orders(1)...) // of another batch, in a transaction of the same session
	dead, err := f.Buffer.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
	ok(t, "ListDead", err)
	equal(t, "dead letter", []any{len(dead), len(dead[0].History)}, []any{1, 0})
}

var sinksHistoryCases = []sinksTestCase{
	{name: "history/each sink has its own", run: sinksHistory},
	{name: "history/each sink has its own where order is kept", ordered: true, run: sinksHistory},
}

func sinksHistory(t *testing.T, p *sinksCase) {
	b := p.open(t, buffer.Route{Sink: "all", BatchSize: 100}, buffer.Route{Sink: "calls", Match: []string{"call.*"}, BatchSize: 100})
	p.topics(t, "call.a", "mail.b", "call.c")
	routeTo(t, b, "[all calls]")
	at := func(sink string, batch *buffer.Lease, all ...buffer.Outcome) {
		t.Helper()
		ok(t, "Settle", b.Sink(sink).Settle(t.Context(), batch, all))
	}
	batch, _ := takeOf(t, b, "calls")
	first := buffer.Attempt{Error: "busy", GroupID: batch.GroupID, Events: 2}
	at("calls", batch, tried(retry(batch, 0), "busy"))
	other, _ := takeOf(t, b, "all")
	sameHistory(t, "history at the other sink", other.History)
	batch, _ = takeOf(t, b, "calls")
	sameHistory(t, "history at the sink", batch.History, first)
	second, part, ids := buffer.Attempt{Error: "refused", GroupID: batch.GroupID, Events: 2}, buffer.NewGroupID(), batch.IDs()
	at("calls", batch, delivered(ids[0]), tried(buffer.Outcome{Verdict: buffer.Retry, IDs: ids[1:], GroupID: part}, "refused"))
	batch, _ = takeOf(t, b, "calls")
	sameHistory(t, "history of a part", batch.History, first, second)
	at("calls", batch, tried(buffer.Outcome{Verdict: buffer.Dead, Attempts: 2}, "for good"))
	dead, err := b.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
	ok(t, "ListDead", err)
	equal(t, "dead letters", len(dead), 1)
	sameHistory(t, "history of a dead letter", dead[0].History, first, second, buffer.Attempt{Error: "for good", GroupID: part, Events: 1})
	at("all", other, delivered())
	p.expectEmpty(t)
}
