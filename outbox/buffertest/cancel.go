package buffertest

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var cancelCases = []testCase{
	{name: "cancel/before the call changes nothing", run: cancelBefore},
	{name: "cancel/during the call is all or nothing", run: cancelMiddle},
	{name: "close/later calls fail", run: closed},
}

func cancelBefore(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(4)...)
	b := claim(t, f.Buffer, 2)
	settle(t, f.Buffer, b, delivered(b.FirstID), buffer.Outcome{Verdict: buffer.Dead, IDs: b.IDs()[1:], Attempts: 1, Error: "refused"})
	b = claim(t, f.Buffer, 1)
	queue := f.Queue(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, act := range map[string]func() error{
		"Check":         func() error { return f.Buffer.Check(ctx) },
		"CountBacklog":  func() error { _, err := f.Buffer.CountBacklog(ctx, 10); return err },
		"Claim":         func() error { _, err := f.Buffer.Claim(ctx, 10, lease); return err },
		"TakeOver":      func() error { _, err := f.Buffer.TakeOver(ctx, lease, buffer.DueRetry); return err },
		"Renew":         func() error { return f.Buffer.Renew(ctx, b, lease) },
		"MarkDelivered": func() error { return f.Buffer.MarkDelivered(ctx, b, b.IDs()) },
		"Settle":        func() error { return f.Buffer.Settle(ctx, b, []buffer.Outcome{delivered()}) },
		"Status":        func() error { _, err := f.Buffer.Status(ctx); return err },

		"DeferredAddresses": func() error { _, err := f.Buffer.DeferredAddresses(ctx); return err },
		"RetryAll":          func() error { _, err := f.Buffer.RetryAll(ctx, "relay retry 1"); return err },
		"RetryRequest":      func() error { _, err := f.Buffer.RetryRequest(ctx); return err },
		"RetryRefused":      func() error { _, err := f.Buffer.RetryRefused(ctx); return err },
		"RetryNow":          func() error { _, err := f.Buffer.RetryNow(ctx, "", 0); return err },
		"Dead":              func() error { _, err := f.Buffer.ListDead(ctx, buffer.DeadFilter{}, nil, 10); return err },
		"CountDead":         func() error { _, err := f.Buffer.CountDead(ctx, buffer.DeadFilter{}); return err },
		"Replay":            func() error { _, err := f.Buffer.Replay(ctx, buffer.DeadFilter{}, 10); return err },
		"Discard":           func() error { _, err := f.Buffer.Discard(ctx, buffer.DeadFilter{}, 10); return err },
		"Audit":             func() error { _, err := f.Buffer.Audit(ctx); return err },
		"Repair":            func() error { _, err := f.Buffer.Repair(ctx); return err },

		"Queue.CountBacklog": func() error { _, err := queue.CountBacklog(ctx, 10); return err },
		"Queue.Claim":        func() error { _, err := queue.Claim(ctx, 10, lease); return err },
		"Queue.TakeOver":     func() error { _, err := queue.TakeOver(ctx, lease, buffer.DueRetry); return err },
	} {
		untouched(t, f, what, func() { fails(t, what, act(), context.Canceled) })
	}
	settle(t, f.Buffer, b, delivered()) // the buffer works as before
	settle(t, f.Buffer, claim(t, f.Buffer, 10), delivered())
	empty(t, f)
}

// cancelMiddle cancels claims and settles at various points, and compares rows and ledger each
// time.
func cancelMiddle(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	var ids []int64
	var settled int
	fate := map[int64]bool{} // of a settle that began, or of a batch that was taken over
	note := func(b *buffer.Lease) {
		for _, id := range b.IDs() {
			fate[id] = true
		}
	}
	for i := 0; i < 60 || settled == 0; i++ {
		ids = append(ids, f.Insert(t, orders(10)...)...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*200*time.Microsecond)
		b, err := f.Buffer.Claim(ctx, 10, lease)
		if err == nil && b != nil {
			note(b)
			err = f.Buffer.Settle(ctx, b, thirds(b))
			if err == nil {
				settled++
			}
		}
		if err != nil && ctx.Err() == nil {
			t.Fatalf("an error before the time was over: %v", err)
		}
		cancel()
		wantAgreement(t, f)
	}

	eventually(t, "what was cut off comes back", func(ctx context.Context) bool {
		for _, row := range f.Ledger(t) {
			f.ExpireLease(t, row.GroupID, time.Second)
		}
		for {
			b, err := takeOverAny(ctx, f.Buffer)
			ok(t, "TakeOver", err)
			if b == nil {
				b, err = f.Buffer.Claim(ctx, 100, lease)
				ok(t, "Claim", err)
			}
			if b == nil {
				return len(f.Rows(t)) == 0 && len(f.Ledger(t)) == 0
			}
			note(b)
			settle(t, f.Buffer, b, delivered())
		}
	})
	equal(t, "events settled", len(fate), len(ids))
}

// thirds makes an outcome of every kind if there are enough events.
func thirds(b *buffer.Lease) []buffer.Outcome {
	ids := b.IDs()
	if len(ids) < 3 {
		return []buffer.Outcome{delivered()}
	}
	return []buffer.Outcome{
		delivered(ids[0]),
		{Verdict: buffer.Dead, IDs: ids[1:2], Attempts: 1, Error: "refused"},
		{Verdict: buffer.Retry, IDs: ids[2:], GroupID: buffer.NewGroupID(), After: lease},
	}
}

// wantAgreement fails the test unless every stamped row is in a live batch and every live batch
// has its rows.
func wantAgreement(t *testing.T, f *Fixture) {
	t.Helper()
	// The database may still commit a cancelled statement between the two reads.
	eventually(t, "buffer and ledger name the same batches", func(context.Context) bool {
		stamped := map[uuid.UUID]int{}
		for _, r := range f.Rows(t) {
			if r.GroupID != uuid.Nil {
				stamped[r.GroupID]++
			}
		}
		live := map[uuid.UUID]int{}
		for _, r := range f.Ledger(t) {
			live[r.GroupID] = r.Events
		}
		return maps.Equal(stamped, live)
	})
}

// closed expects the error of a closed buffer.
func closed(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(1)...)
	second := f.Second(t)
	claim(t, second, 10)
	ok(t, "Close", second.Close())
	if _, err := second.Claim(t.Context(), 10, lease); err == nil || errors.Is(err, buffer.ErrLeaseLost) {
		t.Fatalf("Claim of a closed buffer: got error %v", err)
	}
}
