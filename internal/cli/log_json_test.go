package cli

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// Machines can compare durations: they are seconds in JSON, and have a unit in text.
func TestLogHandler_Durations(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{
		"json": `"retry_in":1.5,"error":"refused: ***"}`, "text": `retry_in=1.5s error="refused: ***"`,
	} {
		var out strings.Builder
		log := slog.New(logHandler(&out, format, slog.LevelInfo, strings.NewReplacer("s3cret", "***").Replace))
		log.Info("x", "retry_in", 1500*time.Millisecond, "error", errors.New("refused: s3cret"))
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: %s", format, out.String())
		}
	}
}
