package db_test

import (
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

func TestParseTime(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Time{
		"2024-02-29T01:02:03.004Z": time.Date(2024, 2, 29, 1, 2, 3, 4e6, time.UTC),
		"2026-02-30T00:00:00.000Z": time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC),
		"2026-12-31T24:30:00.000Z": time.Date(2027, 1, 1, 0, 30, 0, 0, time.UTC),
		"0000-01-01T00:00:00.000Z": time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		got, err := db.ParseTime(text)
		testkit.NoError(t, err)
		if !got.Equal(want) {
			t.Errorf("%s is read as %v, want %v", text, got, want)
		}
	}
	for _, text := range []string{"", "yesterday", "2026-02-30 00:00:00"} {
		if got, err := db.ParseTime(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}
