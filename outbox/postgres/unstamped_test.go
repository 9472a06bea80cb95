package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// ignorers are what makes an UPDATE do nothing.
var ignorers = map[string]string{
	"returns NULL": `CREATE FUNCTION ignore() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE TRIGGER ignore BEFORE UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION ignore()`,
	"returns OLD":  `CREATE FUNCTION ignore() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'; CREATE TRIGGER ignore BEFORE UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION ignore()`,
	"rule":         `CREATE RULE ignore AS ON UPDATE TO %s DO INSTEAD NOTHING`,
}

// TestClaim_Unstamped: a claim whose UPDATE changes nothing fails and writes nothing, so does the settle of a part, and doctor names
// the cause.
func TestClaim_Unstamped(t *testing.T) {
	t.Parallel()
	open := map[string]func(*testing.T) *buffertest.Fixture{}
	for name, opt := range map[string]buffertest.Options{"stamp": {Claim: buffer.ClaimStamp}, "order": {Ordered: true}} {
		open[name] = func(t *testing.T) *buffertest.Fixture {
			return newMigratedDB(t, opt).fixture(t, "outbox_events", "orders")
		}
	}
	for name, harness := range map[string]buffertest.Harness{
		"integer": customHarness(integerKeys), "cursor": customHarness(cursorKeys), "uuid": uuidHarness(),
	} {
		open[name] = func(t *testing.T) *buffertest.Fixture { return harness.Open(t, buffertest.Options{}) }
	}
	for name, open := range open {
		for ignorer, statement := range ignorers {
			t.Run(name+"/"+ignorer, func(t *testing.T) {
				t.Parallel()
				f := open(t)
				event := outbox.Event{Topic: "t", Payload: []byte("1")}
				ids := f.Insert(t, event, event, event)
				b, err := f.Buffer.Claim(t.Context(), 2, lease)
				check(t, err)
				f.Exec(t, fmt.Sprintf(statement, f.Table))
				claimed, err := f.Buffer.Claim(t.Context(), 10, lease)
				if _, unstamped := errors.AsType[*buffer.UnstampedError](err); !unstamped || claimed != nil {
					t.Fatalf("claimed %+v, %v; want a *buffer.UnstampedError", claimed, err)
				}
				err = f.Buffer.Settle(t.Context(), b, []buffer.Outcome{
					{Verdict: buffer.Delivered, IDs: ids[:1]},
					{Verdict: buffer.Retry, IDs: ids[1:2], GroupID: buffer.NewGroupID()},
				})
				if _, refused := errors.AsType[*buffer.SettleError](err); !refused {
					t.Fatalf("settled: %v; want a *buffer.SettleError", err)
				}
				testkit.Equal(t, "batches", len(f.Ledger(t)), 1)
				testkit.Equal(t, "rows", len(f.Rows(t)), 3)
				var fix string
				for _, found := range f.Buffer.(buffer.Diagnoser).Diagnose(t.Context()) {
					if found.Subject == "updates" {
						_, fix, _ = strings.Cut(found.Fix, "DROP ")
					}
				}
				if fix == "" {
					t.Fatal("doctor names nothing")
				}
				f.Exec(t, "DROP "+fix)
				check(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
				b, err = f.Buffer.Claim(t.Context(), 10, lease)
				check(t, err)
				testkit.Equal(t, "claimed", fmt.Sprint(b.IDs()), fmt.Sprint(ids[2:]))
			})
		}
	}
}
