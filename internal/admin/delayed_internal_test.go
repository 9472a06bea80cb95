package admin

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestDelayedReport: the line says how many events are delayed and when the next one is available; without any there is none.
func TestDelayedReport(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 1, 8, 0, 0, 0, time.FixedZone("", 3600))
	if d := delayedReport(&buffer.Status{}, now); d != nil {
		t.Errorf("without delayed events the report is %+v", d)
	}
	d := delayedReport(&buffer.Status{Delayed: 1234, NextDelayed: 90 * time.Minute}, now)
	if got, want := d.Text(), "delayed: 1,234, next at 2026-12-01T08:30:00Z"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	d = delayedReport(&buffer.Status{Delayed: 1, NextDelayed: 365 * 24 * time.Hour}, now)
	if got, want := d.Text(), "delayed: 1, next in more than a year"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if text, err := json.Marshal(d); err != nil || string(text) != `{"events":1}` {
		t.Errorf("the JSON is %s, %v", text, err)
	}
}
