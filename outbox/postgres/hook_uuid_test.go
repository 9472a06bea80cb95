package postgres_test

import (
	"slices"
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Two dead batch of one uuid, with different numbers, are in different batches, the older one first.
func TestHook_TwoDeadLettersOfOneUUID(t *testing.T) {
	t.Parallel()
	o := newUUIDs(t, 3)
	b := o.claim(t, 10)
	o.settle(t, b, buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "no"})
	o.exec(t, `
INSERT INTO relay.outbox_dead_letters (pipeline, event_id, topic, payload, created_at, group_id, attempts, error, died_at, event_uuid, event_row)
SELECT pipeline, event_id + 1000, topic, payload, created_at, gen_random_uuid(), attempts, 'once more', died_at + interval '1 second', event_uuid, event_row
FROM relay.outbox_dead_letters`)
	hook := o.DeadLetterQueue()
	for _, why := range []string{"no", "once more"} {
		batch, err := hook.Claim(t.Context(), 10, lease)
		check(t, err)
		if batch == nil || !slices.Equal(uuidsOf(batch), uuidsOf(b)) {
			t.Fatalf("dead letters with error %q: %+v", why, batch)
		}
		for i, l := range batch.Events {
			if got := batch.DeadLetter(i).Error; got != why {
				t.Errorf("the dead letter of %s has error %q; want %q", l.Identity(), got, why)
			}
		}
		check(t, hook.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	}
	if batch, err := hook.Claim(t.Context(), 10, lease); batch != nil || err != nil {
		t.Fatalf("more dead letters: %+v, %v", batch, err)
	}
}
