package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// diagnosisTimeout is how long the diagnosis of a database or a sink may take.
const diagnosisTimeout = 10 * time.Second

func (a *app) doctorCommand() *cobra.Command {
	var asJSON bool
	c := a.withConfig(&cobra.Command{
		Use:   "doctor",
		Short: "Check databases and sinks, and say what is wrong and how to fix it",
		Long: `Doctor checks the database and the sink of every pipeline: tables, privileges,
indexes, the query plan of a claim, and transactions that block vacuum; whether the
sink accepts events, and how durable it is. It changes nothing.

OK: no problem. WARN: it works, but not as well as it could. FAIL: it does not work.
The fix is below each finding. The exit status is 1 if anything fails.`,
		Example: "  relay doctor -c relay.yaml\n  relay doctor -c relay.yaml --json",
	}, func(c *cobra.Command, cfg *config.Config) error {
		pipelines, err := cfg.Open(func(string) config.Process {
			return config.Process{Owner: "doctor", Stdout: io.Discard, Log: discardLog}
		})
		if err != nil {
			return err
		}
		reports := diagnose(c.Context(), cfg, pipelines)
		for _, err := range closeAll(pipelines) {
			a.fail(err)
		}
		for _, r := range reports {
			a.failed = a.failed || r.count(buffer.LevelError) > 0
		}
		if asJSON {
			return a.printJSON(a.reportsJSON(reports))
		}
		return a.printReports(reports)
	})
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// report is what was found about one pipeline.
type report struct {
	pipeline *config.Pipeline
	findings []buffer.Finding
}

func (r *report) count(level buffer.Level) (n int64) {
	for _, f := range r.findings {
		if f.Level == level {
			n++
		}
	}
	return n
}

// diagnose checks all databases and sinks concurrently.
func diagnose(ctx context.Context, cfg *config.Config, pipelines []*config.Runtime) []report {
	type check struct {
		pipeline int
		run      func(context.Context) []buffer.Finding
		findings []buffer.Finding
	}
	var checks []check
	for i, opened := range pipelines {
		p := &cfg.Pipelines[i]
		checks = append(checks,
			check{pipeline: i, run: opened.Buffer.Diagnose},
			check{pipeline: i, run: func(ctx context.Context) []buffer.Finding { return diagnoseSink(ctx, "sink", &p.Sink, opened.Sink) }})
		if opened.Hook != nil {
			checks = append(checks, check{pipeline: i, run: func(ctx context.Context) []buffer.Finding {
				return diagnoseSink(ctx, "dead_letter.hook", p.DeadLetter.Hook, opened.Hook)
			}})
		}
	}
	var wait sync.WaitGroup
	for i := range checks {
		wait.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, diagnosisTimeout)
			defer cancel()
			checks[i].findings = checks[i].run(ctx)
		})
	}
	wait.Wait()
	reports := make([]report, len(pipelines))
	for i := range reports {
		reports[i].pipeline = &cfg.Pipelines[i]
	}
	for _, c := range checks {
		reports[c.pipeline].findings = append(reports[c.pipeline].findings, c.findings...)
	}
	return reports
}

// diagnoseSink reports whether a sink accepts events, and what may lose them there.
func diagnoseSink(ctx context.Context, key string, c *config.Sink, s sink.Sink) []buffer.Finding {
	where := fmt.Sprintf("%s (%s)", c.URL, address(c))
	if err := s.Check(ctx); err != nil {
		fix := "correct " + key + " in the configuration"
		if errors.Is(err, sink.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			fix = "start it, make room in it, or correct " + key + "; events wait until then"
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%s did not respond within %v: %w", where, diagnosisTimeout, err)
		}
		return []buffer.Finding{{Level: buffer.LevelError, Subject: key, Text: err.Error(), Fix: fix}}
	}
	findings := []buffer.Finding{{Subject: key, Text: where + " is reachable"}}
	if warner, ok := s.(sink.Warner); ok {
		for _, text := range warner.Warnings(ctx) {
			findings = append(findings, buffer.Finding{Level: buffer.LevelWarning, Subject: key, Text: text})
		}
	}
	if recommender, ok := s.(interface {
		Recommendations(context.Context) []string
	}); ok {
		for _, text := range recommender.Recommendations(ctx) {
			findings = append(findings, buffer.Finding{Subject: key, Text: text})
		}
	}
	return findings
}

// printReports writes the findings for people.
func (a *app) printReports(reports []report) error {
	paint := painter(a.stdout)
	levels := map[buffer.Level]string{
		buffer.LevelOK: paint(green, "OK") + "  ", buffer.LevelWarning: paint(yellow, "WARN"), buffer.LevelError: paint(red, "FAIL"),
	}
	var (
		b                  strings.Builder
		problems, warnings int64
	)
	for _, r := range reports {
		b.WriteString(route(r.pipeline) + "\n")
		width := 0
		for _, f := range r.findings {
			width = max(width, len(f.Subject))
		}
		for _, f := range r.findings {
			fmt.Fprintf(&b, "  %s  %-*s  %s\n", levels[f.Level], width, f.Subject, oneLine(a.redact(f.Text)))
			if f.Fix != "" {
				fmt.Fprintf(&b, "        %*s  > %s\n", width, "", a.redact(f.Fix))
			}
		}
		b.WriteByte('\n')
		problems += r.count(buffer.LevelError)
		warnings += r.count(buffer.LevelWarning)
	}
	fmt.Fprintf(&b, "%s, %s\n", plural(problems, "problem", "problems"), plural(warnings, "warning", "warnings"))
	_, err := io.WriteString(a.stdout, b.String())
	return err
}

// reportsJSON is the output of relay doctor --json.
func (a *app) reportsJSON(reports []report) any {
	type finding struct {
		Level   string `json:"level"`
		Subject string `json:"subject"`
		Text    string `json:"text"`
		Fix     string `json:"fix,omitempty"`
	}
	type pipeline struct {
		Name     string    `json:"name"`
		Findings []finding `json:"findings"`
	}
	all := struct {
		Problems  int64      `json:"problems"`
		Warnings  int64      `json:"warnings"`
		Pipelines []pipeline `json:"pipelines"`
	}{Pipelines: []pipeline{}}
	for _, r := range reports {
		p := pipeline{Name: r.pipeline.Name, Findings: []finding{}}
		for _, f := range r.findings {
			p.Findings = append(p.Findings, finding{f.Level.String(), f.Subject, oneLine(a.redact(f.Text)), a.redact(f.Fix)})
		}
		all.Problems += r.count(buffer.LevelError)
		all.Warnings += r.count(buffer.LevelWarning)
		all.Pipelines = append(all.Pipelines, p)
	}
	return all
}
