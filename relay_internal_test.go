package relay

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// place is a Stringer, as many values in logs are.
type place struct{ name string }

func (p place) String() string { return p.name }

func TestRedacting(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	redact := func(text string) string { return strings.ReplaceAll(text, "s3cret", "***") }
	log := slog.New(redacting{slog.NewJSONHandler(&out, nil), redact}).With("a", "s3cret").WithGroup("group").With("b", errors.New("s3cret"))
	log.Info("s3cret", "c", "a s3cret", "d", errors.New("a s3cret"), "e", place{"s3cret"}, "f", 7, slog.Group("g", "h", "s3cret"))
	if text := out.String(); strings.Contains(text, "s3cret") || strings.Count(text, "***") != 7 || !strings.Contains(text, `"f":7`) || !strings.Contains(text, `"group":{"b":"***"`) {
		t.Errorf("the log is %s", text)
	}
}
