package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func (a *app) sinksFillCommand() *cobra.Command {
	var (
		pipeline, since string
		dryRun, yes     bool
	)
	c := a.withSink(&cobra.Command{
		Use:   "fill NAME",
		Short: "Give a sink the events of before it was added",
		Long: `Fill gives a sink the events that it takes, were created since a time and were never
routed to it: before a relay with this sink started for the first time, or while it was
dropped. They are those that still wait for another sink, and those in the archive if
the pipeline has one. No other sink gets them again, and a second fill gives the sink
none of them again. It can be stopped at any time and repeated.

The events wait for the sink's relay, as others do. A batch that another sink is just
sending is awaited. order: none only. A custom table needs PostgreSQL: source.project
gives the topics, and nothing comes from the archive: it has what was sent, not the rows.`,
		Example: "  relay sinks fill crm -c relay.yaml --since 72h --dry-run\n  relay sinks fill crm -c relay.yaml --since 2026-01-31\n  relay sinks fill crm -c relay.yaml --since 2026-01-31T08:00:00Z --yes",
	}, &pipeline, func(ctx context.Context, r *registry, s *buffer.RegisteredSink) error {
		from, err := parseTime("--since", since)
		if err != nil {
			return err
		}
		return a.fill(ctx, r, s, from, dryRun, yes)
	})
	c.Flags().StringVar(&pipeline, "pipeline", "", "of this pipeline")
	c.Flags().StringVar(&since, "since", "", "events created since then: a time or a date (UTC if it names no zone), or a duration like 72h")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "count and change nothing")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	return c
}

// fill counts what the sink lacks, asks, and gives it to the sink.
func (a *app) fill(ctx context.Context, r *registry, s *buffer.RegisteredSink, since time.Time, dryRun, yes bool) error {
	fail := func(err error) error {
		switch {
		case errors.Is(err, buffer.ErrFillOrder):
			return usage("%s: sink %s cannot be filled, because the pipeline or one of its sinks has order: key, and earlier events would arrive behind later ones of their keys. "+
				"Set order: none for all of them until the sink has the events, or send it the events of the archive yourself", r.pipeline.Name, s.Name)
		case errors.Is(err, errors.ErrUnsupported):
			return usage("%s: %v; expected the relay's own table, or PostgreSQL", r.pipeline.Name, err)
		}
		return fmt.Errorf("%s: %w", r.pipeline.Name, err)
	}
	filler, ok := r.SinkRegistry.(buffer.SinkFiller)
	if !ok {
		return fail(fmt.Errorf("filling sink %s: %w", s.Name, errors.ErrUnsupported))
	}
	expected, err := filler.FillSink(ctx, s.Name, since, true, nil)
	if err != nil {
		return fail(err)
	}
	if dryRun || expected.Events() == 0 {
		return a.reportFilled(fmt.Sprintf("%s: sink %s lacks", r.pipeline.Name, s.Name), r.pipeline.Name, &expected)
	}
	if !yes {
		if err := a.confirmFill(r.pipeline.Name, s.Name, expected); err != nil {
			return err
		}
	}
	bar := newProgress(a.stderr, "fill "+s.Name)
	defer bar.end()
	filled, err := filler.FillSink(ctx, s.Name, since, false, func(done buffer.Filled) {
		bar.set(done.Events(), max(expected.Events(), done.Events()))
	})
	if err != nil {
		return fail(fmt.Errorf("after %s: %w; repeat the command to continue", describeFilled(filled), err))
	}
	return a.reportFilled(fmt.Sprintf("%s: gave sink %s", r.pipeline.Name, s.Name), r.pipeline.Name, &filled)
}

// reportFilled prints what a sink lacks or got, and what was left out. The error says what a repeated fill may give.
func (a *app) reportFilled(what, pipeline string, f *buffer.Filled) error {
	text := fmt.Sprintf("%s %s\n", what, describeFilled(*f))
	if f.Rejected > 0 {
		text += fmt.Sprintf("%s: left out %s, for which source.project returns no row, or a wrong one\n", pipeline, plural(f.Rejected, "event", "events"))
	}
	if f.NoArchive {
		text += pipeline + ": left out the archive: that of a custom table has what was sent, not the rows\n"
	}
	if _, err := fmt.Fprint(a.stdout, text); err != nil || f.Failed == 0 {
		return err
	}
	return fmt.Errorf("%s: left out %s of batches that cannot be projected: %w. Correct the data or source.project, and repeat the command", pipeline, plural(f.Failed, "event", "events"), f.Err)
}

func describeFilled(f buffer.Filled) string {
	text := plural(f.Events(), "event", "events")
	if f.Archived > 0 {
		text += fmt.Sprintf(", %s of them from the archive", admin.Count(f.Archived))
	}
	return text
}

// confirmFill asks for confirmation on a terminal.
func (a *app) confirmFill(pipeline, sink string, f buffer.Filled) error {
	if !isTerminal(os.Stdin) || !isTerminal(a.stderr) {
		return nil
	}
	ok, err := a.newQuestions(os.Stdin).confirm(fmt.Sprintf("Give sink %s of %s %s?", sink, pipeline, describeFilled(f)))
	if err == nil && !ok || errors.Is(err, errNoAnswer) {
		return errors.New("nothing was changed")
	}
	return err
}
