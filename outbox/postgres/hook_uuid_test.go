package postgres_test

import (
	"slices"
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Two letters of one uuid, whose numbers are not the same, go apart, the older first.
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
		letters, err := hook.Claim(t.Context(), 10, lease)
		check(t, err)
		if letters == nil || !slices.Equal(uuidsOf(letters), uuidsOf(b)) {
			t.Fatalf("letters that died of %q: %+v", why, letters)
		}
		for i, l := range letters.Events {
			if got := letters.DeadLetter(i).Error; got != why {
				t.Errorf("the dead letter of %s has error %q; want %q", l.UUID, got, why)
			}
		}
		check(t, hook.Settle(t.Context(), letters, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	}
	if letters, err := hook.Claim(t.Context(), 10, lease); letters != nil || err != nil {
		t.Fatalf("more letters: %+v, %v", letters, err)
	}
}
