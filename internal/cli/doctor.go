package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// diagnosisTimeout is how long the diagnosis of a database or a sink may take.
const diagnosisTimeout = 10 * time.Second

func (a *app) doctorCommand() *cobra.Command {
	var (
		pipeline      string
		asJSON, quiet bool
	)
	c := a.withConfig(&cobra.Command{
		Use:   "doctor",
		Short: "Check databases and sinks, and say what is wrong and how to fix it",
		Long: `Doctor checks the database and the sink of every pipeline: tables, privileges,
indexes, the query plan of a claim, and transactions that block vacuum; whether the
sink accepts events, and how durable it is. It changes nothing.

A sink that can be reached may still refuse every event: what the running relays say
of themselves is a finding too.

OK: no problem. WARN: it works, but not as well as it could. FAIL: it does not work.
The fix is below each finding. What several pipelines of one database have in common
stands once, above them. With --quiet only WARN and FAIL are shown, and nothing if all
is well. The exit status is 1 if anything fails.`,
		Example: "  relay doctor -c relay.yaml\n  relay doctor -c relay.yaml --pipeline orders --quiet\n  relay doctor -c relay.yaml --json",
	}, func(c *cobra.Command, cfg *config.Config) error {
		if pipeline != "" {
			selected, err := selectPipelines(cfg, pipeline)
			if err != nil {
				return err
			}
			cfg.Pipelines = []config.Pipeline{*selected[0]}
		}
		pipelines, err := cfg.Open(func(string) config.Process {
			return config.Process{Owner: "doctor", Stdout: io.Discard, Log: discardLog}
		})
		if err != nil {
			return err
		}
		d := a.diagnose(c.Context(), cfg, pipelines)
		for _, err := range closeAll(pipelines) {
			a.fail(err)
		}
		a.failed = a.failed || d.Problems > 0
		if asJSON {
			return a.printJSON(d)
		}
		return a.printDiagnosis(cfg, d, quiet)
	})
	c.Flags().StringVar(&pipeline, "pipeline", "", "only this pipeline")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "show only what is not OK")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// diagnosis is the output of relay doctor --json. The findings are in the order of the pipelines, and what pipelines have in common is
// repeated and counted for each. People see and count it once.
type diagnosis struct {
	Problems  int64               `json:"problems"`
	Warnings  int64               `json:"warnings"`
	Pipelines []pipelineDiagnosis `json:"pipelines"`
}

type pipelineDiagnosis struct {
	Name     string    `json:"name"`
	Findings []finding `json:"findings"`
}

type finding struct {
	Level   string `json:"level"`
	Subject string `json:"subject"`
	Text    string `json:"text"`
	Fix     string `json:"fix,omitempty"`

	about string // see [buffer.Finding]
}

// same reports whether two pipelines found the same, in other words maybe.
func (f finding) same(other finding) bool {
	return f == other || f.about != "" && f.about == other.about
}

// in reports whether one of findings is the same.
func (f finding) in(findings []finding) bool { return slices.ContainsFunc(findings, f.same) }

// diagnose checks all databases and sinks concurrently.
func (a *app) diagnose(ctx context.Context, cfg *config.Config, pipelines []*config.Runtime) (d diagnosis) {
	type check struct {
		pipeline int
		run      func(context.Context) []buffer.Finding
		findings []buffer.Finding
	}
	var checks []check
	for i, opened := range pipelines {
		checks = append(checks,
			check{pipeline: i, run: func(ctx context.Context) []buffer.Finding {
				return slices.Concat(opened.Buffer.Diagnose(ctx), diagnoseEvents(ctx, opened), diagnoseRelays(ctx, &cfg.Pipelines[i], opened.Buffer))
			}})
		for _, s := range opened.Sinks {
			checks = append(checks, check{pipeline: i, run: func(ctx context.Context) []buffer.Finding {
				return diagnoseSink(ctx, strings.TrimSpace("sink "+s.Config.SinkName), &s.Config.Sink, s.Sink)
			}})
		}
		for _, h := range opened.Hooks {
			checks = append(checks, check{pipeline: i, run: func(ctx context.Context) []buffer.Finding {
				return diagnoseSink(ctx, h.Name, h.Config, h.Sink)
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
	for i := range pipelines {
		d.Pipelines = append(d.Pipelines, pipelineDiagnosis{Name: cfg.Pipelines[i].Name, Findings: []finding{}})
	}
	for i := range d.Pipelines {
		p := &d.Pipelines[i]
		for _, w := range cfg.Warnings() {
			if w.Pipeline == p.Name {
				p.Findings = append(p.Findings, finding{buffer.LevelWarning.String(), "configuration", a.redact(w.Place.String() + ": " + w.Text), a.redact(w.Fix), ""})
				d.Warnings++
			}
		}
	}
	for _, c := range checks {
		p := &d.Pipelines[c.pipeline]
		for _, f := range c.findings {
			p.Findings = append(p.Findings, finding{f.Level.String(), f.Subject, oneLine(a.redact(a.forFile(f.Text))), a.redact(a.forFile(f.Fix)), f.About})
			switch f.Level {
			case buffer.LevelError:
				d.Problems++
			case buffer.LevelWarning:
				d.Warnings++
			}
		}
	}
	return d
}

// diagnoseSink reports whether a sink accepts events, and what may lose them there.
func diagnoseSink(ctx context.Context, key string, c *config.Sink, s sink.Sink) []buffer.Finding {
	where := fmt.Sprintf("%s (%s)", c.URL, address(c))
	if err := s.Check(ctx); err != nil {
		fix := "correct " + key + " in the configuration"
		dns, unknownHost := errors.AsType[*net.DNSError](err)
		switch {
		case unknownHost && dns.IsNotFound:
			fix += ": the host is not known here"
		case c.Driver == "file" && errors.Is(err, fs.ErrNotExist):
			fix = "create the folder " + filepath.Dir(c.File.Path) + ", or correct " + key + " in the configuration; events wait until then"
		case errors.Is(err, sink.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded):
			fix = "start it, free space on it, or correct " + key + " in the configuration; events wait until then"
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%s did not respond within %v: %w", where, diagnosisTimeout, err)
		}
		return []buffer.Finding{{Level: buffer.LevelError, Subject: key, Text: err.Error(), Fix: fix}}
	}
	findings := []buffer.Finding{{Subject: key, Text: where + " is reachable"}}
	if obstructed, ok := s.(sink.Obstructed); ok {
		for _, text := range obstructed.Obstacles(ctx) {
			findings = append(findings, buffer.Finding{Level: buffer.LevelError, Subject: key, Text: text})
		}
	}
	if warner, ok := s.(sink.Warner); ok {
		for _, text := range warner.Warnings(ctx) {
			findings = append(findings, buffer.Finding{Level: buffer.LevelWarning, Subject: key, Text: text})
		}
	}
	if informer, ok := s.(sink.Informer); ok {
		for _, text := range informer.Notes(ctx) {
			findings = append(findings, buffer.Finding{Subject: key, Text: text})
		}
	}
	return findings
}

// diagnoseRelays adds what the running relays say of themselves. A sink that can be reached may still refuse everything, which only
// those know who send to it. It returns nothing if the status cannot be read: the buffer's own findings say why.
func diagnoseRelays(ctx context.Context, p *config.Pipeline, b buffer.Buffer) (findings []buffer.Finding) {
	const about = "relays"
	status, err := b.Status(ctx)
	if err != nil {
		return nil
	}
	notReady, running := admin.NotReady(status.Relays, sinkNames(p))
	for i := range notReady {
		r := &notReady[i]
		findings = append(findings, buffer.Finding{
			Level: buffer.LevelError, Subject: about,
			Text: fmt.Sprintf("%s reported %s ago that it is not ready: %s", admin.RelayName(r), admin.Age(r.Seen), r.NotReady),
			Fix:  "remove this cause, then relay retry --now -c relay.yaml sends at once; relay preview -c relay.yaml shows the requests of unclaimed events, and with --events-file FILE those of events that wait (docs/troubleshooting.md#the-request-of-a-waiting-batch)",
		})
	}
	for _, n := range admin.Notices(status.Relays, sinkNames(p)) {
		findings = append(findings, buffer.Finding{Level: buffer.LevelWarning, Subject: about, Text: n.String()})
	}
	report := admin.NewPipelineReport(p.Name, p.MaxWaiting, sinkNames(p), deadLettersOf(p, b).Notifies, status, func(text string) string { return text })
	for i := range report.Pauses {
		text, fix, _ := strings.Cut(report.Pauses[i].Text(p.Name), ". > ")
		findings = append(findings, buffer.Finding{Level: buffer.LevelWarning, Subject: about, Text: text, Fix: fix})
	}
	hook := report.Hook
	if hook != nil && hook.Unnotified > 0 && len(hook.Waits) > 0 {
		findings = append(findings, buffer.Finding{
			Level: buffer.LevelError, Subject: "dead_letter.hook",
			Text: fmt.Sprintf("it takes nothing: %s it was not notified of; %s", plural(hook.Unnotified, "dead letter", "dead letters"), hook.Waits[0].Text()),
			Fix:  "correct dead_letter.hook, or what answers there; the dead letters are kept, and it is notified again until it accepts them",
		})
	}
	gone := admin.Gone(status.Relays)
	for i := range gone {
		findings = append(findings, buffer.Finding{
			Level: buffer.LevelWarning, Subject: about, Text: admin.GoneText(&gone[i]),
			Fix: "find out why it ended: its log, memory limits, a crash of the host. " + map[bool]string{true: "The next relay takes", false: "Other relays take"}[running == 0] + " its batches over when their leases end",
		})
	}
	findings = append(findings, admin.Unserved(&status, sinkNames(p))...)
	switch {
	case running == 0 && len(gone) > 0 && status.Pending > 0: // nobody stopped them
		findings = append(findings, buffer.Finding{Level: buffer.LevelError, Subject: about, Text: "none runs, and events wait", Fix: "relay run -c relay.yaml"})
	case running == 0:
		findings = append(findings, buffer.Finding{Subject: about, Text: "none runs"})
	case notReady == nil:
		findings = append(findings, buffer.Finding{Subject: about, Text: "all that run are ready"})
	}
	return findings
}

// printDiagnosis writes the findings for people.
func (a *app) printDiagnosis(cfg *config.Config, d diagnosis, quiet bool) error {
	blocks := make([]diagnosisBlock, 0, len(d.Pipelines))
	for i, p := range d.Pipelines {
		one := diagnosisBlock{findings: p.Findings, source: cfg.Pipelines[i].Source.URL.Reveal()}
		for _, pipeline := range cfg.Pipelines[i].PerSink() {
			one.head = append(one.head, route(pipeline))
		}
		blocks = append(blocks, one)
	}
	blocks = shareFindings(blocks, func(at []int) string {
		names := make([]string, len(at))
		for i, pipeline := range at {
			names[i] = d.Pipelines[pipeline].Name
		}
		return fmt.Sprintf("%s: %s", cfg.Pipelines[at[0]].Source.URL, strings.Join(names, ", "))
	})
	paint := painter(a.stdout)
	levels := map[string]string{
		buffer.LevelOK.String(): paint(green, "OK") + "  ", buffer.LevelWarning.String(): paint(yellow, "WARN"), buffer.LevelError.String(): paint(red, "FAIL"),
	}
	var b strings.Builder
	printed := map[string]int64{} // by level
	for _, block := range blocks {
		if quiet {
			block.findings = slices.DeleteFunc(slices.Clone(block.findings), func(f finding) bool { return f.Level == buffer.LevelOK.String() })
		}
		if len(block.findings) == 0 {
			continue
		}
		b.WriteString(strings.Join(block.head, "\n") + "\n")
		width := 0
		for _, f := range block.findings {
			width = max(width, len(f.Subject))
		}
		for _, f := range block.findings {
			printed[f.Level]++
			fmt.Fprintf(&b, "  %s  %-*s  %s\n", levels[f.Level], width, f.Subject, f.Text)
			if f.Fix != "" {
				fmt.Fprintf(&b, "        %*s  > %s\n", width, "", f.Fix)
			}
		}
		b.WriteByte('\n')
	}
	if !quiet || b.Len() > 0 {
		fmt.Fprintf(&b, "%s, %s\n", plural(printed[buffer.LevelError.String()], "problem", "problems"),
			plural(printed[buffer.LevelWarning.String()], "warning", "warnings"))
	}
	_, err := io.WriteString(a.stdout, b.String())
	return err
}

// diagnosisBlock is what a heading has below it.
type diagnosisBlock struct {
	head     []string
	findings []finding
	source   string // the URL of a pipeline's database
}

// shareFindings moves what all pipelines of one database have in common into a block above the first of them. name is its
// heading, of the indexes of the pipelines. What is about something of a server is there once, also if it is found in several of its databases.
func shareFindings(of []diagnosisBlock, name func(pipelines []int) string) (all []diagnosisBlock) {
	bySource := map[string][]int{}
	for i := range of {
		bySource[of[i].source] = append(bySource[of[i].source], i)
	}
	shared := map[string][]finding{}
	for source, at := range bySource {
		if len(at) == 1 {
			continue
		}
		for _, f := range of[at[0]].findings {
			if !slices.ContainsFunc(at, func(i int) bool { return !f.in(of[i].findings) }) && !f.in(shared[source]) {
				shared[source] = append(shared[source], f)
			}
		}
	}
	for i, one := range of {
		common := shared[one.source]
		if at := bySource[one.source]; at[0] == i && len(common) > 0 {
			all = append(all, diagnosisBlock{head: []string{name(at)}, findings: common})
		}
		one.findings = slices.DeleteFunc(slices.Clone(one.findings), func(f finding) bool { return f.in(common) })
		all = append(all, one)
	}
	var known []finding // about a server
	for i := range all {
		all[i].findings = slices.DeleteFunc(slices.Clone(all[i].findings), func(f finding) bool {
			if f.about == "" {
				return false
			}
			if f.in(known) {
				return true
			}
			known = append(known, f)
			return false
		})
	}
	return all
}
