package postgres_test

import (
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

var twoEvents = []outbox.Event{{Topic: "a", Payload: []byte("1")}, {Topic: "a", Payload: []byte("2")}}

// The application deletes the events between the claim and its read: the batch is returned without events, so that its
// ledger row is removed.
func TestClaim_DeletedBeforeTheRead(t *testing.T) {
	t.Parallel()
	f := harness(buffer.ClaimStamp).Open(t, buffertest.Options{Claim: buffer.ClaimStamp})
	f.Exec(t, `CREATE FUNCTION public.forget() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN DELETE FROM public.`+f.Table+` WHERE id = NEW.id; RETURN NULL; END'`)
	f.Exec(t, `CREATE CONSTRAINT TRIGGER forget AFTER UPDATE ON `+f.Table+`
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.forget()`)
	f.Insert(t, twoEvents...)
	l, err := f.Buffer.Claim(t.Context(), 10, time.Minute)
	check(t, err)
	if l == nil || l.Len() != 0 {
		t.Fatalf("claimed %+v; want a batch without events", l)
	}
	check(t, f.Buffer.Settle(t.Context(), l, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	if left := f.Ledger(t); len(left) > 0 {
		t.Errorf("the ledger has %+v; want nothing", left)
	}
}
