package diagnosis

import (
	"context"
	"slices"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// rowLocks returns what the buffer finds. A transaction with locks in the event table is a problem while events wait for it, as the console says.
func rowLocks(ctx context.Context, p *config.Pipeline, b buffer.Buffer) []buffer.Finding {
	findings := b.Diagnose(ctx)
	i := slices.IndexFunc(findings, func(f buffer.Finding) bool { return f.Subject == buffer.RowLocks && f.Level == buffer.LevelWarning })
	if i < 0 {
		return findings
	}
	status, err := b.Status(ctx)
	if err != nil { // other findings say why
		return findings
	}
	report := admin.NewPipelineReport(p.Name, p.MaxWaiting, p.SinkNames(), notifies(p), status, func(text string) string { return text })
	if p.Scheduled() {
		report.SetScheduled()
	}
	report.RowsLockedBy = &admin.BlockerReport{Text: findings[i].Text, Fix: findings[i].Fix}
	if report.LockKeepsEvents() {
		findings[i].Level = buffer.LevelError
	}
	return findings
}
