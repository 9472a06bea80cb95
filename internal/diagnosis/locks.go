package diagnosis

import (
	"slices"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// rowLocks makes a transaction with locks in the event table a problem while events wait for it, as the console says.
func rowLocks(p *config.Pipeline, status *buffer.Status, findings []buffer.Finding) {
	i := slices.IndexFunc(findings, func(f buffer.Finding) bool { return f.Subject == buffer.RowLocks && f.Level == buffer.LevelWarning })
	if i < 0 {
		return
	}
	report := admin.NewPipelineReport(p.Name, p.MaxWaiting, p.SinkNames(), notifies(p), *status, func(text string) string { return text })
	if p.Scheduled() {
		report.SetScheduled()
	}
	report.RowsLockedBy = &admin.BlockerReport{Text: findings[i].Text, Fix: findings[i].Fix}
	if report.LockKeepsEvents() {
		findings[i].Level = buffer.LevelError
	}
}
