package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/supervisor"
)

// statusTimeout is how long a database may take to respond.
const statusTimeout = 10 * time.Second

func (a *app) statusCommand() *cobra.Command {
	var asJSON bool
	c := a.withConfig(&cobra.Command{
		Use:   "status",
		Short: "Show backlog, oldest event, batches and dead letters",
		Long: `Status reads the backlog of every pipeline from its database, and why batches wait and
until when, those of the dead-letter hook too. It changes nothing and works without a running relay. If a database cannot be reached, status prints
the error, shows the other pipelines and exits with 1.`,
		Example: "  relay status -c relay.yaml\n  relay status -c relay.yaml --json",
	}, func(c *cobra.Command, cfg *config.Config) error {
		if err := cfg.CheckSources(); err != nil {
			return err
		}
		report := a.report(c.Context(), cfg)
		if asJSON {
			return a.printJSON(report)
		}
		_, err := io.WriteString(a.stdout, a.forFile(statusTable(report)))
		return err
	})
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// report reads the status of all pipelines concurrently and prints the errors.
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
		one := admin.NewPipelineReport(name, cfg.Pipelines[i].MaxWaiting, sinkNames(&cfg.Pipelines[i]), statuses[i], a.redact)
		if holders[i] != nil {
			one.VacuumBlockedBy = admin.NewBlockerReport(*holders[i])
		}
		report.Pipelines = append(report.Pipelines, one)
	}
	return report
}

// status returns the status of a buffer, and the oldest transaction that blocks vacuum
// if it is older than warn_after.
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

// sinkNames are the names of several sinks; nil for a single one.
func sinkNames(p *config.Pipeline) (names []string) {
	for i := range p.Sinks {
		names = append(names, p.Sinks[i].Name)
	}
	return names
}

// statusTable formats a report for people.
func statusTable(r admin.Report) string {
	rows := [][]string{{"PIPELINE", "PENDING", "OLDEST", "LEASED", "WAITING", "DELIVERED", "DEAD"}}
	states := []string{"STATE"}
	row := func(name string, pending int64, oldestSeconds float64, batches admin.Batches, dead int64, state string) {
		oldest := "-"
		if pending > 0 {
			oldest = admin.Age(time.Duration(oldestSeconds * float64(time.Second)))
		}
		rows = append(rows, []string{
			name, admin.Pending(pending), oldest,
			admin.Count(batches.Leased), admin.Count(batches.Waiting), admin.Count(batches.Delivered), admin.Count(dead),
		})
		states = append(states, state)
	}
	several := false
	for _, p := range r.Pipelines {
		row(p.Name, p.Pending, p.OldestPendingSeconds, p.Batches, p.Dead, "")
		for _, s := range p.Sinks {
			several = true
			row("  "+s.Name, s.Pending, s.OldestPendingSeconds, s.Batches, s.Dead, s.State)
		}
	}
	rows = alignRight(rows)
	if several {
		for i := range rows {
			rows[i] = append(rows[i], states[i])
		}
	}
	text := columns(rows, 0)
	for _, p := range r.Pipelines {
		if p.ClaimingStopped != "" {
			text += p.Name + ": " + p.ClaimingStopped + "\n"
		}
		for _, w := range p.Waits {
			text += p.Name + ": " + oneLine(w.Text()) + "\n"
		}
		for _, s := range p.Sinks {
			for _, w := range s.Waits {
				text += p.Name + "/" + s.Name + ": " + oneLine(w.Text()) + "\n"
			}
		}
		if p.Hook != nil {
			for _, w := range p.Hook.Waits {
				text += p.Name + ": dead-letter hook: " + oneLine(w.Text()) + "\n"
			}
		}
		if p.Suspects != nil {
			text += p.Name + ": " + p.Suspects.Text() + "\n"
		}
		for _, problem := range p.SinkProblems {
			text += p.Name + ": " + problem + "\n"
		}
		if p.VacuumBlockedBy != nil {
			text += fmt.Sprintf("%s: vacuum is blocked: %s. Run relay doctor for the fix.\n", p.Name, oneLine(p.VacuumBlockedBy.Text))
		}
	}
	return text
}
