package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// The age of waiting events is measured by created_at or the column that the configuration names, claimed or not. Without one it
// is unknown, and never 0 or the time since the claim.
func TestStatus_CustomAges(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]struct {
		id, columns, created string
		known                bool
	}{
		"created_at":             {"bigint GENERATED ALWAYS AS IDENTITY", ", created_at timestamptz DEFAULT now() - interval '3 hours'", "", true},
		"configured":             {"bigint GENERATED ALWAYS AS IDENTITY", `, "insertedAt" timestamptz DEFAULT now() - interval '3 hours', created_at timestamptz DEFAULT now()`, "insertedAt", true},
		"without time zone":      {"bigint GENERATED ALWAYS AS IDENTITY", `, inserted_at timestamp DEFAULT (now() AT TIME ZONE 'UTC' - interval '3 hours')`, "inserted_at", true},
		"configured, uuid":       {"uuid DEFAULT gen_random_uuid()", ", inserted_at timestamptz DEFAULT now() - interval '3 hours'", "inserted_at", true},
		"none":                   {"bigint GENERATED ALWAYS AS IDENTITY", ", inserted_at timestamptz DEFAULT now() - interval '3 hours'", "", false},
		"none, uuid":             {"uuid DEFAULT gen_random_uuid()", "", "", false},
		"created_at is no time":  {"bigint GENERATED ALWAYS AS IDENTITY", ", created_at text DEFAULT 'yesterday'", "", false},
		"created_at is infinite": {"bigint GENERATED ALWAYS AS IDENTITY", ", created_at timestamptz DEFAULT 'infinity'", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			custom := buffer.CustomTable{ID: "id", CreatedAt: try.created, Project: "SELECT e.id, to_jsonb(e.n) AS payload FROM {events} e"}
			o := newCustomFixture(t, testserver.Postgres(t), "CREATE SCHEMA relay; CREATE TABLE changes (id "+try.id+" PRIMARY KEY, n integer"+try.columns+", group_id uuid)", custom, "changes")
			status := func(when string) {
				t.Helper()
				s, err := o.Status(t.Context())
				check(t, err)
				if age := s.OldestPending; s.AgeUnknown == try.known || try.known && (age < 3*time.Hour-time.Minute || age > 3*time.Hour+5*time.Minute) || !try.known && age != 0 {
					t.Errorf("%s: the age is %v, unknown %t", when, age, s.AgeUnknown)
				}
			}
			o.exec(t, "INSERT INTO changes (n) VALUES (1), (2)")
			status("waiting")
			if name == "created_at is infinite" { // once claimed, it is as old as its claim
				return
			}
			b := o.claim(t, 10)
			if age := b.ClaimedAt.Sub(b.Events[0].CreatedAt); try.known && age < 2*time.Hour {
				t.Errorf("the event was created %v before its claim", age)
			}
			status("claimed")
			warns := false
			for _, f := range o.Diagnose(t.Context()) {
				warns = warns || strings.Contains(f.Text, "the age of waiting events is unknown")
			}
			if warns == try.known {
				t.Errorf("doctor warns: %t", warns)
			}
		})
	}
}

// A column that source.created_at names must exist and be a time.
func TestCheck_CustomCreatedAt(t *testing.T) {
	t.Parallel()
	custom := buffer.CustomTable{ID: "id", Project: "SELECT e.id, to_jsonb(e.n) AS payload FROM {events} e"}
	o := newCustomFixture(t, testserver.Postgres(t), "CREATE SCHEMA relay; CREATE TABLE changes (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n integer, day date, group_id uuid)", custom, "changes")
	for column, want := range map[string]string{
		"gone": `has no column "gone", which source.created_at names: `, "dax": "which source.created_at names (did you mean day?)", "n": "which source.created_at names, is integer; expected timestamptz", "day": "is date; expected timestamptz",
	} {
		c := o.config
		c.Custom.CreatedAt = column
		err := o.open(t, c).Check(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("for %s: %v, want %s", column, err, want)
		}
	}
}
