package postgres_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// The highest id there is, and ids as far apart as can be: they are claimed, split,
// recorded and deleted as any other, and block no others.
func TestClaim_ExtremeIDs(t *testing.T) {
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimRange, buffer.ClaimStamp} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{Claim: mode})
			f := p.fixture(t, "outbox_events", "orders")
			ctx := t.Context()
			check(t, f.Buffer.Check(ctx))
			f.Insert(t, outbox.Event{Topic: "t", Payload: []byte("{}")})
			for _, id := range []int64{math.MinInt64 + 1, math.MaxInt64 - 1, math.MaxInt64} {
				f.Exec(t, fmt.Sprintf("INSERT INTO outbox_events (id, topic, payload) VALUES (%d, 't', '{}')", id))
			}
			for n := range 20 {
				if len(f.Rows(t)) == 0 {
					break
				}
				_, err := f.Buffer.CountBacklog(ctx, 100)
				check(t, err)
				b, err := f.Buffer.Claim(ctx, 10, lease)
				check(t, err)
				if b == nil {
					b, err = testkit.TakeOver(ctx, f.Buffer, lease)
					check(t, err)
				}
				if b == nil {
					continue
				}
				ids := b.IDs()
				switch {
				case n%2 == 0 && len(ids) > 1:
					check(t, f.Buffer.Settle(ctx, b, []buffer.Outcome{
						{Verdict: buffer.Delivered, IDs: ids[:1]},
						{Verdict: buffer.Retry, IDs: ids[1:], GroupID: buffer.NewGroupID()},
					}))
				default:
					check(t, f.Buffer.MarkDelivered(ctx, b, ids))
					check(t, f.Buffer.Settle(ctx, b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
				}
			}
			if rows := f.Rows(t); len(rows) > 0 {
				t.Errorf("left are %v", rows)
			}
			if ledger := f.Ledger(t); len(ledger) > 0 {
				t.Errorf("the ledger has %v", ledger)
			}
		})
	}
}
