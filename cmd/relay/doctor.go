package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// examinationTime is how long a database or a sink may take to be looked at.
const examinationTime = 10 * time.Second

func (a *app) doctorCommand() *cobra.Command {
	var asJSON bool
	c := a.configured(&cobra.Command{
		Use:   "doctor",
		Short: "Look at databases and sinks and say what is wrong and how to mend it",
		Long: `Doctor looks at the database and the sink of every pipeline as they are: tables,
privileges, indexes, the plan of a claim, vacuum and what holds it back; whether
the sink would take events and keeps what it promises. It changes nothing.

OK is as it should be, WARN works but not as well as promised, FAIL does not
work. Below each stands what to do. The exit status is 1 when something fails.`,
		Example: "  relay doctor -c relay.yaml\n  relay doctor -c relay.yaml --json",
	}, func(c *cobra.Command, cfg *config.Config) error {
		logging.Disable() // go-redis has a log of its own; its errors come to us anyhow
		lines, err := cfg.Open(func(string) config.Process {
			return config.Process{Owner: "doctor", Stdout: io.Discard, Log: silent}
		})
		if err != nil {
			return err
		}
		checkups := examine(c.Context(), cfg, lines)
		for _, err := range closeAll(lines) {
			a.fail(err)
		}
		for _, c := range checkups {
			a.failed = a.failed || c.count(buffer.LevelError) > 0
		}
		if asJSON {
			return a.printJSON(checkupsJSON(checkups, a.redact))
		}
		return a.printCheckups(checkups)
	})
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// checkup is what was found about one pipeline.
type checkup struct {
	pipeline *config.Pipeline
	findings []buffer.Finding
}

func (c *checkup) count(level buffer.Level) (n int) {
	for _, f := range c.findings {
		if f.Level == level {
			n++
		}
	}
	return n
}

// examine looks at all databases and sinks at the same time.
func examine(ctx context.Context, cfg *config.Config, lines []*config.Opened) []checkup {
	type part struct {
		pipeline int
		look     func(context.Context) []buffer.Finding
		found    []buffer.Finding
	}
	var parts []part
	for i, line := range lines {
		p := &cfg.Pipelines[i]
		parts = append(parts,
			part{pipeline: i, look: line.Buffer.Diagnose},
			part{pipeline: i, look: func(ctx context.Context) []buffer.Finding { return examineSink(ctx, "sink", &p.Sink, line.Sink) }})
		if line.Hook != nil {
			parts = append(parts, part{pipeline: i, look: func(ctx context.Context) []buffer.Finding {
				return examineSink(ctx, "dead_letter.hook", p.DeadLetter.Hook, line.Hook)
			}})
		}
	}
	var wait sync.WaitGroup
	for i := range parts {
		wait.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, examinationTime)
			defer cancel()
			parts[i].found = parts[i].look(ctx)
		})
	}
	wait.Wait()
	checkups := make([]checkup, len(lines))
	for i := range checkups {
		checkups[i].pipeline = &cfg.Pipelines[i]
	}
	for _, part := range parts {
		checkups[part.pipeline].findings = append(checkups[part.pipeline].findings, part.found...)
	}
	return checkups
}

// examineSink asks whether a sink would take events, and what endangers them there.
func examineSink(ctx context.Context, about string, c *config.Sink, s sink.Sink) []buffer.Finding {
	where := fmt.Sprintf("%s (%s)", c.URL, address(c))
	if err := s.Check(ctx); err != nil {
		mend := "correct " + about + " in the configuration"
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			err = fmt.Errorf("%s did not answer within %v: %w", where, examinationTime, err)
			fallthrough
		case errors.Is(err, sink.ErrUnavailable):
			mend = "start it, make room in it, or correct " + about + "; events wait until then"
		}
		return []buffer.Finding{{Level: buffer.LevelError, Subject: about, Text: err.Error(), Fix: mend}}
	}
	found := []buffer.Finding{{Subject: about, Text: where + " answers"}}
	if warner, ok := s.(sink.Warner); ok {
		for _, text := range warner.Warnings(ctx) {
			found = append(found, buffer.Finding{Level: buffer.LevelWarning, Subject: about, Text: text})
		}
	}
	if recommender, ok := s.(interface {
		Recommendations(context.Context) []string
	}); ok {
		for _, text := range recommender.Recommendations(ctx) {
			found = append(found, buffer.Finding{Subject: about, Text: text})
		}
	}
	return found
}

// printJSON prints a value for scripts.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// checkupsJSON is what `relay doctor --json` prints.
func checkupsJSON(checkups []checkup, redact func(string) string) any {
	type finding struct {
		Level string `json:"level"`
		About string `json:"about"`
		Text  string `json:"text"`
		Mend  string `json:"mend,omitempty"`
	}
	type pipeline struct {
		Name     string    `json:"name"`
		Findings []finding `json:"findings"`
	}
	all := struct {
		Problems  int        `json:"problems"`
		Warnings  int        `json:"warnings"`
		Pipelines []pipeline `json:"pipelines"`
	}{Pipelines: []pipeline{}}
	for _, c := range checkups {
		p := pipeline{Name: c.pipeline.Name, Findings: []finding{}}
		for _, f := range c.findings {
			p.Findings = append(p.Findings, finding{f.Level.String(), f.Subject, oneLine(redact(f.Text)), redact(f.Fix)})
		}
		all.Problems += c.count(buffer.LevelError)
		all.Warnings += c.count(buffer.LevelWarning)
		all.Pipelines = append(all.Pipelines, p)
	}
	return all
}
