package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/diagnosis"
	"github.com/outboxrelay/relay/outbox/buffer"
)

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
		d := diagnosis.Run(c.Context(), cfg, pipelines, diagnosis.Options{
			Text: func(text string) string { return oneLine(a.redact(a.forFile(text))) }, Fix: func(fix string) string { return a.redact(a.forFile(fix)) },
			LocalRelay: func(ctx context.Context, pipeline string) string { return localRelay(ctx, cfg.Admin, pipeline) },
		})
		for _, err := range closeAll(pipelines) {
			a.fail(err)
		}
		a.failed = a.failed || d.Problems > 0
		if asJSON {
			return a.printJSON(d)
		}
		return a.printDiagnosis(&d, quiet)
	})
	c.Flags().StringVar(&pipeline, "pipeline", "", "only this pipeline")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "show only what is not OK")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// printDiagnosis writes the findings for people.
func (a *app) printDiagnosis(d *diagnosis.Report, quiet bool) error {
	paint := painter(a.stdout)
	levels := map[string]string{
		buffer.LevelOK.String(): paint(green, "OK") + "  ", buffer.LevelWarning.String(): paint(yellow, "WARN"), buffer.LevelError.String(): paint(red, "FAIL"),
	}
	var b strings.Builder
	printed := map[string]int64{} // by level
	for _, block := range d.Blocks() {
		if quiet {
			block.Findings = slices.DeleteFunc(slices.Clone(block.Findings), func(f diagnosis.Finding) bool { return f.Level == buffer.LevelOK.String() })
		}
		if len(block.Findings) == 0 {
			continue
		}
		b.WriteString(strings.Join(block.Head, "\n") + "\n")
		width := 0
		for _, f := range block.Findings {
			width = max(width, len(f.Subject))
		}
		for _, f := range block.Findings {
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
