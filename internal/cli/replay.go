package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// replayFlags are the flags of relay replay.
type replayFlags struct {
	pipeline, since, until, sink string
	topics                       []string
	rate                         int
	dryRun, yes                  bool
}

func (a *app) replayCommand() *cobra.Command {
	var f replayFlags
	c := a.withoutSinks(&cobra.Command{
		Use:   "replay",
		Short: "Send events of the archive again",
		Long: `Replay inserts delivered events of the archive into the buffer again, under their old
ids and with new group_ids. A running relay sends them: to every sink that takes them,
or to --sink only. Each event is sent once, however often it is in the archive.

The time is that of the delivery (archived_at). An event that is in the buffer is left
out, and so is one that was delivered again after --until, or that is a dead letter
(relay dead replay sends those that are open). So a replay that was interrupted is continued by the same command with the same --until, which it prints.

Consumers get the events a second time. With order: key, they arrive behind later events
of their keys. The archive of a custom table has what was sent, not the rows: it cannot
be replayed.`,
		Example: "  relay replay -c relay.yaml --since 2h --dry-run\n  relay replay -c relay.yaml --since 2026-01-31T08:00:00Z --until 2026-01-31T09:00:00Z --topic 'orders.*'\n  relay replay -c relay.yaml --since 24h --sink crm --rate 500",
	}, func(c *cobra.Command, cfg *config.Config) error { return a.replay(c.Context(), cfg, &f) })
	c.Flags().StringVar(&f.pipeline, "pipeline", "", "of this pipeline; needed if there are several")
	c.Flags().StringVar(&f.since, "since", "", "delivered since then: a time or a date (UTC if it names no zone), or a duration like 72h")
	c.Flags().StringVar(&f.until, "until", "", "delivered before then (default now)")
	c.Flags().StringSliceVar(&f.topics, "topic", nil, "with a topic that matches this pattern, as in match; several: any of them")
	c.Flags().StringVar(&f.sink, "sink", "", "to this sink only, what it takes")
	c.Flags().IntVar(&f.rate, "rate", 0, "at most so many events a second (default no limit)")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "count and change nothing")
	c.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask for confirmation")
	return c
}

// filter checks the flags, and returns the pipeline and the filter.
func (f *replayFlags) filter(cfg *config.Config) (p *config.Pipeline, filter buffer.ArchiveFilter, err error) {
	if err := cfg.CheckSources(); err != nil {
		return nil, filter, err
	}
	selected, err := selectPipelines(cfg, f.pipeline)
	if err != nil {
		return nil, filter, err
	}
	if p = selected[0]; len(selected) > 1 {
		return nil, filter, usage("there are %d pipelines; expected --pipeline %s, or another of them", len(selected), p.Name)
	}
	if filter.Since, err = parseTime("--since", f.since); err != nil {
		return nil, filter, err
	}
	if f.until != "" {
		if filter.Until, err = parseTime("--until", f.until); err != nil {
			return nil, filter, err
		}
		if !filter.Until.After(filter.Since) {
			return nil, filter, usage("--until is not after --since")
		}
	}
	if filter.Topics, err = buffer.ParsePatterns(f.topics); err != nil {
		return nil, filter, usage("--topic: %v", err)
	}
	if f.rate < 0 {
		return nil, filter, usage("--rate is %d; expected a number of events a second, or 0 for no limit", f.rate)
	}
	filter.Sink, filter.BatchSize, filter.PageSize = f.sink, p.BatchSize, f.rate
	for _, one := range p.PerSink() {
		if f.sink != "" && one.SinkName == f.sink {
			filter.BatchSize = one.BatchSize
		}
	}
	if f.sink != "" && p.Sinks == nil {
		return nil, filter, usage("pipeline %s has a single sink; expected no --sink", p.Name)
	}
	return p, filter, nil
}

// replay counts the events, says what the sinks make of them, asks, and puts them back.
func (a *app) replay(ctx context.Context, cfg *config.Config, f *replayFlags) (err error) {
	p, filter, err := f.filter(cfg)
	if err != nil {
		return err
	}
	b, err := p.OpenBuffer("replay")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	archiver, ok := b.(buffer.Archiver)
	if !ok {
		return fmt.Errorf("%s: %w", p.Name, buffer.ErrNoArchive)
	}
	var expected buffer.Replayed
	if f.dryRun || !f.yes || isTerminal(a.stderr) { // otherwise nobody sees the count, which takes a third of the time
		counted := filter
		counted.PageSize = 0 // nothing is sent
		if expected, err = archiver.ReplayArchived(ctx, counted, true, nil); err != nil {
			return a.explainReplay(p, err)
		}
		filter.Until = expected.Until
		if _, err := fmt.Fprintf(a.stdout, "%s: %s\n", p.Name, describeReplayed("would send", &expected)); err != nil || f.dryRun || expected.Events == 0 {
			return err
		}
	}
	for _, note := range replayNotes(p, f.sink) {
		if _, err := fmt.Fprintf(a.stdout, "%s: %s\n", p.Name, note); err != nil {
			return err
		}
	}
	if !f.yes {
		if err := a.confirmReplay(p.Name, &expected); err != nil {
			return err
		}
	}
	bar := newProgress(a.stderr, "replay "+p.Name)
	began := time.Now()
	done, err := archiver.ReplayArchived(ctx, filter, false, func(r buffer.Replayed) {
		bar.set(r.Events, max(expected.Events, r.Events))
		if f.rate > 0 {
			pause(ctx, time.Until(began.Add(time.Duration(float64(r.Events)/float64(f.rate)*float64(time.Second)))))
		}
	})
	bar.end()
	if err != nil {
		if done.Until.IsZero() {
			return a.explainReplay(p, err)
		}
		return fmt.Errorf("%s: after %s: %w; to continue, repeat the command with --until %s", p.Name, plural(done.Events, "event", "events"), err, timeOf(&done))
	}
	_, err = fmt.Fprintf(a.stdout, "%s: %s\n", p.Name, describeReplayed("sends", &done))
	return err
}

// pause waits, or until the context ends.
func pause(ctx context.Context, wait time.Duration) {
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
}

func (a *app) explainReplay(p *config.Pipeline, err error) error {
	if errors.Is(err, buffer.ErrNoArchive) {
		return usage("pipeline %s has no archive, so its delivered events are gone; archive.table keeps those from then on", p.Name)
	}
	return fmt.Errorf("%s: %w", p.Name, err)
}

// timeOf is --until, or when the command began.
func timeOf(r *buffer.Replayed) string { return r.Until.UTC().Format(time.RFC3339Nano) }

func describeReplayed(verb string, r *buffer.Replayed) string {
	text := fmt.Sprintf("%s %s of before %s again", verb, plural(r.Events, "event", "events"), timeOf(r))
	if r.Waiting > 0 {
		text += fmt.Sprintf("; left out %s in the buffer", plural(r.Waiting, "event that is", "events that are"))
	}
	if r.Repeated > 0 {
		text += fmt.Sprintf("; left out %s delivered again since", plural(r.Repeated, "event that was", "events that were"))
	}
	if r.Dead > 0 {
		text += fmt.Sprintf("; left out %s: relay dead replay sends those that are open", plural(r.Dead, "event that is a dead letter", "events that are dead letters"))
	}
	if r.Ahead > 0 {
		text += fmt.Sprintf("; left out %s, because the sequence of the ids has not come to theirs and may assign them, as after TRUNCATE ... RESTART IDENTITY: raise it first (setval)", plural(r.Ahead, "event", "events"))
	}
	return text
}

// replayNotes say what each sink that gets the events makes of events that it had before.
func replayNotes(p *config.Pipeline, sink string) (notes []string) {
	for _, one := range p.PerSink() {
		if sink != "" && one.SinkName != sink {
			continue
		}
		what := "the sink"
		if one.SinkName != "" {
			what = "sink " + one.SinkName
		}
		switch one.Sink.Driver {
		case "http":
			what += " gets new Idempotency-Keys with the old event ids; an API that drops ids that it knows drops these events"
		case "nats", "redis":
			what += " gets the events under new message ids; its duplicate window drops none of them"
		default:
			what += " gets the old event ids; if it drops ids that it knows, it drops these events"
		}
		notes = append(notes, what)
	}
	return notes
}

// confirmReplay asks for confirmation on a terminal.
func (a *app) confirmReplay(pipeline string, r *buffer.Replayed) error {
	if !isTerminal(os.Stdin) || !isTerminal(a.stderr) {
		return nil
	}
	ok, err := a.newQuestions(os.Stdin).confirm(fmt.Sprintf("Send %s of %s again?", plural(r.Events, "event", "events"), pipeline))
	if err == nil && !ok || errors.Is(err, errNoAnswer) {
		return errors.New("nothing was changed")
	}
	return err
}

// parseTime parses the value of a flag: a time, a date, or how long ago it was.
func parseTime(flag, text string) (time.Time, error) {
	const expected = "expected a time like 2026-01-31T08:00:00Z, a date, or a duration like 72h"
	if text == "" {
		return time.Time{}, usage("%s is missing; %s", flag, expected)
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return time.Now().Add(-ago), nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateTime, time.DateOnly} {
		if at, err := time.Parse(layout, strings.TrimSpace(text)); err == nil {
			return at, nil
		}
	}
	return time.Time{}, usage("%s is %q; %s", flag, text, expected)
}
