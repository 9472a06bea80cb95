package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/supervisor"
)

// statusTimeout is how long a database may take to answer.
const statusTimeout = 10 * time.Second

func (a *app) statusCommand() *cobra.Command {
	var asJSON bool
	c := a.configured(&cobra.Command{
		Use:   "status",
		Short: "Show backlog, oldest event, batches and dead letters",
		Long: `Status asks the database of every pipeline what is waiting. It changes nothing
and needs no relay to run. A database that cannot be asked is told on standard
error, and the exit status is 1; the others are shown all the same.`,
		Example: "  relay status -c relay.yaml\n  relay status -c relay.yaml --json",
	}, func(c *cobra.Command, cfg *config.Config) error {
		if err := cfg.CheckSources(); err != nil {
			return err
		}
		report := a.report(c.Context(), cfg)
		if !asJSON {
			_, err := io.WriteString(a.stdout, table(report))
			return err
		}
		enc := json.NewEncoder(a.stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(report)
	})
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// report asks all databases at the same time and tells of those that do not answer.
func (a *app) report(ctx context.Context, cfg *config.Config) admin.Report {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var (
		wait     sync.WaitGroup
		statuses = make([]buffer.Status, len(cfg.Pipelines))
		holders  = make([]*buffer.VacuumBlocker, len(cfg.Pipelines))
		errs     = make([]error, len(cfg.Pipelines))
	)
	for i := range cfg.Pipelines {
		wait.Go(func() { statuses[i], holders[i], errs[i] = status(ctx, &cfg.Pipelines[i]) })
	}
	wait.Wait()
	report := admin.Report{Pipelines: []admin.PipelineReport{}}
	for i, err := range errs {
		name := cfg.Pipelines[i].Name
		if err != nil {
			a.fail(fmt.Errorf("%s: %w", name, err))
			continue
		}
		one := admin.NewPipelineReport(name, statuses[i])
		if holders[i] != nil {
			one.HeldBackBy = admin.NewHolderReport(*holders[i])
		}
		report.Pipelines = append(report.Pipelines, one)
	}
	return report
}

// status is a buffer's, and what holds its database furthest back if that is worth a
// word.
func status(ctx context.Context, p *config.Pipeline) (s buffer.Status, worst *buffer.VacuumBlocker, err error) {
	b, err := p.OpenBuffer("status")
	if err != nil {
		return s, nil, err
	}
	s, err = b.Status(ctx)
	if source, ok := b.(supervisor.Source); ok && err == nil {
		var all []buffer.VacuumBlocker
		all, err = source.Blockers(ctx)
		for i := range all {
			if h := &all[i]; h.Beyond(p.Source.Supervisor.WarnAfter) {
				worst = h
				break
			}
		}
	}
	if closeErr := b.Close(); err == nil {
		err = closeErr
	}
	return s, worst, err
}

// table shows a report, the first column to the left and numbers to the right.
func table(r admin.Report) string {
	rows := [][]string{{"PIPELINE", "PENDING", "OLDEST", "LEASED", "WAITING", "DELIVERED", "DEAD"}}
	for _, p := range r.Pipelines {
		oldest := "-"
		if p.Pending > 0 {
			oldest = admin.Age(time.Duration(p.OldestPendingSeconds * float64(time.Second)))
		}
		rows = append(rows, []string{
			p.Name, admin.Pending(p.Pending), oldest,
			admin.Count(p.Batches.Leased), admin.Count(p.Batches.Waiting), admin.Count(p.Batches.Delivered), admin.Count(p.Dead),
		})
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&b, "%-*s", widths[0], row[0])
		for i, cell := range row[1:] {
			fmt.Fprintf(&b, "  %*s", widths[i+1], cell)
		}
		b.WriteByte('\n')
	}
	for _, p := range r.Pipelines {
		if p.HeldBackBy != nil {
			fmt.Fprintf(&b, "%s is held back: %s. relay doctor says what ends it.\n", p.Name, oneLine(p.HeldBackBy.Text))
		}
	}
	return b.String()
}
