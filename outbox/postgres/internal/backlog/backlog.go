// Package backlog reads and repairs a buffer as a whole: it counts what waits, sweeps for late commits
// and orphans, reports the status, and compares the ledger with the events.
package backlog

import (
	"strings"

	"github.com/outboxrelay/relay/outbox/postgres/internal/delayed"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// Backlog is safe for concurrent use.
type Backlog struct {
	base       *ledger.Base
	watermarks *watermark.Watermarks
	// idsSweep looks for ids that the watermarks cannot know, orphansSweep for orphans as well.
	idsSweep, orphansSweep windows
}

// New returns the backlog of a buffer.
func New(base *ledger.Base, watermarks *watermark.Watermarks) *Backlog {
	return &Backlog{base: base, watermarks: watermarks}
}

// Statements returns the statements for the relay's own table. They read nothing of it but id, group_id, key, available_at and
// created_at, so outbox_events may also stand for a SELECT of these.
func Statements(names *strings.Replacer) ledger.Statements {
	return ledger.Statements{
		Count: names.Replace(countSQL), FullSweep: names.Replace(fullSweepSQL), Status: names.Replace(statusSQL), Audit: names.Replace(auditSQL), AuditSinks: names.Replace(auditSinksSQL), Windows: true,
		RemoveEmpty: names.Replace(removeEmptySQL), CorrectCounts: names.Replace(correctCountsSQL), Adopt: names.Replace(adoptSQL), AdoptAll: names.Replace(adoptSQL),
		Due: names.Replace(delayed.DueSQL),
	}
}
