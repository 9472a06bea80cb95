package audit

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// TestLog: each action is one line, and the last ones stay in memory.
func TestLog(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	l := New(slog.New(slog.NewTextHandler(&text, nil)))
	for i := range Kept + 5 {
		l.Add(t.Context(), Entry{Who: "alice, console, 127.0.0.1", Action: "discard", Pipeline: "orders", Count: int64(i), Detail: "topic=a", Reason: "two\nlines"})
	}
	all := l.Entries()
	if len(all) != Kept || all[0].Count != Kept+4 || all[Kept-1].Count != 5 || all[0].At.IsZero() {
		t.Errorf("%d entries from %v to %v", len(all), all[0], all[len(all)-1])
	}
	l.Add(t.Context(), Entry{Detail: strings.Repeat("ä", 1000)})
	if got := l.Entries()[0].Detail; got != strings.Repeat("ä", maxDetail/2)+"..." {
		t.Errorf("a long detail is %q", got)
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	if want := `level=INFO msg=audit who="alice, console, 127.0.0.1" action=discard pipeline=orders count=7 detail="topic=a" reason="two\nlines"`; len(lines) != Kept+6 || !strings.HasSuffix(lines[7], want) {
		t.Errorf("%d lines, the eighth is\n%s, want\n%s", len(lines), lines[7], want)
	}
}
