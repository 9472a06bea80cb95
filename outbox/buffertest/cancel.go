package buffertest

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
)

var cancelCases = []testCase{
	{name: "cancel/before it begins nothing happens", run: cancelBefore},
	{name: "cancel/in the middle nothing is half done", run: cancelMiddle},
	{name: "close/nothing works after it", run: closed},
}

func cancelBefore(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(4)...)
	b := claim(t, f.Buffer, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, act := range map[string]func() error{
		"Check":    func() error { return f.Buffer.Check(ctx) },
		"Look":     func() error { _, err := f.Buffer.Look(ctx, 10); return err },
		"Claim":    func() error { _, err := f.Buffer.Claim(ctx, 10, lease); return err },
		"TakeOver": func() error { _, err := f.Buffer.TakeOver(ctx, lease); return err },
		"Renew":    func() error { return f.Buffer.Renew(ctx, b, lease) },
		"Mark":     func() error { return f.Buffer.Mark(ctx, b, b.IDs()) },
		"Settle":   func() error { return f.Buffer.Settle(ctx, b, []outbox.Outcome{delivered()}) },
		"Status":   func() error { _, err := f.Buffer.Status(ctx); return err },
	} {
		untouched(t, f, what, func() { fails(t, what, act(), context.Canceled) })
	}
	settle(t, f.Buffer, b, delivered()) // the buffer is as good as before
	settle(t, f.Buffer, claim(t, f.Buffer, 10), delivered())
	empty(t, f)
}

// cancelMiddle gives claims and settles less and more time than they need, and
// looks each time whether rows and ledger agree.
func cancelMiddle(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	const events = 300
	ids := f.Insert(t, orders(events)...)
	var settled int
	for i := range 60 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*200*time.Microsecond)
		b, err := f.Buffer.Claim(ctx, 10, lease)
		if err == nil && b != nil {
			err = f.Buffer.Settle(ctx, b, []outbox.Outcome{
				delivered(b.IDs()[:5]...),
				{Verdict: outbox.Dead, IDs: b.IDs()[5:7], Attempts: 1, Error: "refused"},
				{Verdict: outbox.Retry, IDs: b.IDs()[7:], GroupID: outbox.NewGroupID(), After: lease},
			})
			if err == nil {
				settled++
			}
		}
		if err != nil && ctx.Err() == nil {
			t.Fatalf("an error before the time was over: %v", err)
		}
		cancel()
		agree(t, f)
	}
	if settled == 0 {
		t.Fatalf("no settle was given enough time, nothing was tested")
	}

	// Nothing is lost: what was cut off comes back.
	gone := events - len(f.Rows(t))
	for _, row := range f.Ledger(t) {
		f.Overdue(t, row.GroupID, time.Second)
	}
	for {
		b, err := f.Buffer.TakeOver(t.Context(), lease)
		ok(t, "TakeOver", err)
		if b == nil {
			b, err = f.Buffer.Claim(t.Context(), 100, lease)
			ok(t, "Claim", err)
		}
		if b == nil {
			break
		}
		gone += len(b.Events)
		settle(t, f.Buffer, b, delivered())
	}
	equal(t, "events that came back or were settled before", gone, len(ids))
	empty(t, f)
}

// agree expects that every stamped row is in a live batch and every live batch
// has its rows.
func agree(t *testing.T, f *Fixture) {
	t.Helper()
	// A database may still be at what was cancelled here, and commit it between
	// our two looks.
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

// closed expects of a closed buffer that it says so.
func closed(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(1)...)
	second := f.Second(t)
	claim(t, second, 10)
	ok(t, "Close", second.Close())
	if _, err := second.Claim(t.Context(), 10, lease); err == nil || errors.Is(err, outbox.ErrLeaseLost) {
		t.Fatalf("Claim of a closed buffer: got error %v", err)
	}
}
