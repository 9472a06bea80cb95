// Package diagnosis checks the databases and the sinks of pipelines, and says what is wrong and how to fix it: what `relay doctor` prints, and the
// console's page Doctor shows. It changes nothing.
package diagnosis

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Timeout is how long the check of a database or a sink may take.
const Timeout = 10 * time.Second

// Report is the output of relay doctor --json. The findings are in the order of the pipelines, and what pipelines have in common is
// repeated and counted for each. People see and count it once; see [Report.Blocks].
type Report struct {
	Problems  int64      `json:"problems"`
	Warnings  int64      `json:"warnings"`
	Pipelines []Pipeline `json:"pipelines"`
	// Databases are the databases of the pipelines, once each, if [Options.Blockers] is set.
	Databases []Database `json:"-"`
}

// Database is what blocks vacuum in a database.
type Database struct {
	// Name is the URL without secrets.
	Name     string
	Blockers []buffer.VacuumBlocker
	// Error is why they are unknown.
	Error string
}

// Pipeline is what was found of a pipeline.
type Pipeline struct {
	Name     string    `json:"name"`
	Findings []Finding `json:"findings"`

	routes           []string // for people: from where to where
	source, database string   // the URL of its database, and without secrets
}

// Finding is a [buffer.Finding] as text.
type Finding struct {
	Level   string `json:"level"`
	Subject string `json:"subject"`
	Text    string `json:"text"`
	Fix     string `json:"fix,omitempty"`

	about string // see [buffer.Finding]
}

// same reports whether two pipelines found the same, in other words maybe.
func (f Finding) same(other Finding) bool {
	return f == other || f.about != "" && f.about == other.about
}

// in reports whether one of findings is the same.
func (f Finding) in(findings []Finding) bool { return slices.ContainsFunc(findings, f.same) }

// Options of a diagnosis.
type Options struct {
	// Text and Fix get every text and fix before it is in the report; they remove secrets.
	Text, Fix func(string) string
	// Databases is how many databases are checked at once; 0: all.
	Databases int
	// Blockers adds what blocks vacuum, whatever its age.
	Blockers bool
	// LocalRelay is asked about a pipeline of which the database knows no running relay; see the CLI. It returns the problem, ". > " and the fix, or "".
	LocalRelay func(ctx context.Context, pipeline string) string
}

// Run checks all databases and sinks concurrently. pipelines are those of the configuration, in its order; they may be running.
func Run(ctx context.Context, cfg *config.Config, pipelines []*config.Runtime, o Options) (d Report) {
	type check struct {
		pipeline int
		run      func(context.Context) []buffer.Finding
		findings []buffer.Finding
	}
	var checks []check
	databases := make(chan struct{}, cmp.Or(o.Databases, max(1, len(pipelines))))
	limited := func(ctx context.Context, run func(context.Context) []buffer.Finding) []buffer.Finding {
		ctx, cancel := context.WithTimeout(ctx, Timeout)
		defer cancel()
		return run(ctx)
	}
	for i, opened := range pipelines {
		checks = append(checks,
			check{pipeline: i, run: func(ctx context.Context) []buffer.Finding {
				databases <- struct{}{}
				defer func() { <-databases }()
				return limited(ctx, func(ctx context.Context) []buffer.Finding {
					return database(ctx, &cfg.Pipelines[i], opened, o.LocalRelay)
				})
			}})
		for _, s := range opened.Sinks {
			checks = append(checks, check{pipeline: i, run: func(ctx context.Context) []buffer.Finding {
				return limited(ctx, func(ctx context.Context) []buffer.Finding {
					return sinkFindings(ctx, strings.TrimSpace("sink "+s.Config.SinkName), &s.Config.Sink, s.Sink)
				})
			}})
		}
		for _, h := range opened.Hooks {
			checks = append(checks, check{pipeline: i, run: func(ctx context.Context) []buffer.Finding {
				return limited(ctx, func(ctx context.Context) []buffer.Finding { return sinkFindings(ctx, h.Name, h.Config, h.Sink) })
			}})
		}
	}
	var wait sync.WaitGroup
	for i := range checks {
		wait.Go(func() { checks[i].findings = checks[i].run(ctx) })
	}
	wait.Wait()
	warnings := cfg.Warnings()
	for i := range pipelines {
		of := &cfg.Pipelines[i]
		p := Pipeline{Name: of.Name, Findings: []Finding{}, source: of.Source.URL.Reveal(), database: of.Source.URL.String()}
		for _, one := range of.PerSink() {
			p.routes = append(p.routes, one.Route())
		}
		d.Pipelines = append(d.Pipelines, p)
	}
	for i := range d.Pipelines {
		p := &d.Pipelines[i]
		for _, w := range warnings {
			if w.Pipeline == p.Name {
				p.Findings = append(p.Findings, Finding{buffer.LevelWarning.String(), "configuration", o.Text(w.Place.String() + ": " + w.Text), o.Fix(w.Fix), ""})
				d.Warnings++
			}
		}
	}
	for _, c := range checks {
		p := &d.Pipelines[c.pipeline]
		for _, f := range c.findings {
			p.Findings = append(p.Findings, Finding{f.Level.String(), f.Subject, o.Text(f.Text), o.Fix(f.Fix), f.About})
			switch f.Level {
			case buffer.LevelError:
				d.Problems++
			case buffer.LevelWarning:
				d.Warnings++
			}
		}
	}
	if o.Blockers {
		d.Databases = blockers(ctx, cfg, pipelines, o)
	}
	return d
}

// database examines the tables of a pipeline, and what relays wrote there. What else cannot be read, the buffer's own findings explain.
func database(ctx context.Context, p *config.Pipeline, opened *config.Runtime, local func(context.Context, string) string) []buffer.Finding {
	findings := opened.Buffer.Diagnose(ctx)
	status, err := opened.Buffer.Status(ctx)
	if locked, ok := errors.AsType[*buffer.LockedError](err); ok { // a look at the tables would wait
		if !slices.ContainsFunc(findings, func(f buffer.Finding) bool { return f.Subject == buffer.TableLock }) {
			findings = append(findings, buffer.Finding{Level: buffer.LevelError, Subject: buffer.TableLock, Text: locked.Text, Fix: locked.Fix})
		}
		return findings
	}
	if err == nil {
		rowLocks(p, &status, findings)
	}
	findings = slices.Concat(findings, events(ctx, opened), kept(ctx, p, opened.Buffer), forgottenArchive(ctx, opened.Buffer))
	if err == nil {
		findings = append(findings, relays(ctx, p, &status, local)...)
	}
	return findings
}

// blockers asks each database that knows them, one after the other.
func blockers(ctx context.Context, cfg *config.Config, pipelines []*config.Runtime, o Options) (all []Database) {
	asked := map[string]bool{}
	for i, opened := range pipelines {
		url := cfg.Pipelines[i].Source.URL
		source, ok := opened.Buffer.(interface {
			Blockers(ctx context.Context) ([]buffer.VacuumBlocker, error)
		})
		if !ok || asked[url.Reveal()] {
			continue
		}
		asked[url.Reveal()] = true
		one := Database{Name: url.String()}
		var err error
		ctx, cancel := context.WithTimeout(ctx, Timeout)
		if one.Blockers, err = source.Blockers(ctx); err != nil {
			one.Error = o.Text(err.Error())
		}
		cancel()
		all = append(all, one)
	}
	return all
}
