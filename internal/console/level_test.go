package console

import (
	"log/slog"
	"testing"
	"time"
)

// TestLogLevel: it goes back to the configured one ten minutes after the last change.
func TestLogLevel(t *testing.T) {
	t.Parallel()
	now := new(slog.LevelVar)
	now.Set(slog.LevelWarn)
	l := newLogLevel(now)
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	expect := func(after time.Duration, want slog.Level, restored bool) {
		t.Helper()
		if got := l.restore(begin.Add(after)); got != restored || now.Level() != want {
			t.Errorf("after %v the level is %v, restored %v; want %v, %v", after, now.Level(), got, want, restored)
		}
	}
	expect(time.Hour, slog.LevelWarn, false)
	l.set(slog.LevelDebug, begin)
	expect(9*time.Minute, slog.LevelDebug, false)
	l.set(slog.LevelError, begin.Add(9*time.Minute))
	if d := l.data(); d.Now != "error" || d.Configured != "warn" || !d.Until.Equal(begin.Add(19*time.Minute)) {
		t.Errorf("the page shows %+v", d)
	}
	expect(18*time.Minute, slog.LevelError, false)
	expect(19*time.Minute, slog.LevelWarn, true)
	expect(20*time.Minute, slog.LevelWarn, false)
	l.set(slog.LevelDebug, begin)
	l.set(slog.LevelWarn, begin)
	expect(time.Hour, slog.LevelWarn, false)
	if d := newLogLevel(nil).data(); d.Known {
		t.Errorf("without a level the page shows %+v", d)
	}
}
