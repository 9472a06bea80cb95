// Package audit writes down what users do at the admin endpoint and in the console: as a line of the log, and in memory for the console.
package audit

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// Kept is how many entries stay in memory.
	Kept = 200
	// maxDetail is how many bytes of a Detail are kept.
	maxDetail = 500
)

// Entry is what somebody did.
type Entry struct {
	At time.Time
	// Who is the user with the address of the request, Action what they did, like "replay".
	Who, Action string
	// Pipeline is the one that it was done to; "" for the whole process.
	Pipeline string
	// Count is how many dead letters or batches it changed.
	Count int64
	// Detail is what was selected or set; may be "". A long one is cut.
	Detail string
	// Reason is what the user gave; may be "".
	Reason string
}

// Counts reports whether Count says something: a pause has none.
func (e *Entry) Counts() bool {
	switch e.Action {
	case "pause", "resume":
		return false
	}
	return e.Pipeline != ""
}

// Nothing reports whether the action changed nothing.
func (e *Entry) Nothing() bool { return e.Counts() && e.Count == 0 }

// Log has the entries of this process. It is safe for concurrent use.
type Log struct {
	log *slog.Logger

	mu      sync.Mutex
	entries []Entry // the oldest first
}

// New returns an empty Log that writes its lines to log.
func New(log *slog.Logger) *Log { return &Log{log: log} }

// Add writes an entry down. It sets At.
func (l *Log) Add(ctx context.Context, e Entry) {
	e.At = time.Now()
	if len(e.Detail) > maxDetail {
		e.Detail = strings.ToValidUTF8(e.Detail[:maxDetail], "") + "..."
	}
	l.log.InfoContext(ctx, "audit", "who", e.Who, "action", e.Action, "pipeline", e.Pipeline, "count", e.Count, "detail", e.Detail, "reason", e.Reason)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.entries) == Kept {
		l.entries = slices.Delete(l.entries, 0, 1)
	}
	l.entries = append(l.entries, e)
}

// Entries are the last ones, the newest first.
func (l *Log) Entries() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(l.entries)
	slices.Reverse(all)
	return all
}
