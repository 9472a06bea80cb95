package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/engine"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func (a *app) deadCommand() *cobra.Command {
	return groupOf(&cobra.Command{
		Use:   "dead",
		Short: "List, show, replay or discard dead letters",
		Long: `A dead letter is an event that the sink rejected permanently or too often. Replay
sends it again, under its old id; discard gives it up. Both close it. Closed dead
letters stay in outbox_dead_letters; list --closed shows them beside the open ones.

All subcommands take the same filters and select the dead letters that match all of
them.`,
		Example: `  relay dead list -c relay.yaml --by error
  relay dead list -c relay.yaml --error "422" --newer-than 1h
  relay dead show -c relay.yaml --id 17
  relay dead replay -c relay.yaml --pipeline orders --topic orders.created --dry-run
  relay dead replay -c relay.yaml --sink crm
  relay dead replay -c relay.yaml --id 17 --edit
  relay dead discard -c relay.yaml --pipeline orders --all`,
	}, a.deadListCommand(), a.deadShowCommand(), a.deadReplayCommand(), a.deadDiscardCommand())
}

// deadFlags are the flags of the dead commands.
type deadFlags struct {
	pipeline             string
	ids                  []string
	sink, topic, error   string
	olderThan, newerThan died
	all, closed, asJSON  bool
	dryRun, yes, edit    bool
	withHeaders          bool // with edit
	by, reason           string
	limit                int
}

// died is a flag for one end of the time in which events died: see admin.ParseDied.
type died struct {
	text string
	ago  time.Duration
	at   time.Time
}

// String implements pflag.Value.
func (d *died) String() string { return d.text }

// Set implements pflag.Value.
func (d *died) Set(text string) (err error) {
	d.text = text
	d.ago, d.at, err = admin.ParseDied(text)
	return err
}

// Type implements pflag.Value.
func (d *died) Type() string { return "age" }

func (f *deadFlags) bind(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.pipeline, "pipeline", "", "only this pipeline")
	flags.StringSliceVar(&f.ids, "id", nil, "only these events (numbers or uuids); repeat the flag or write 17,18")
	flags.StringVar(&f.sink, "sink", "", "only this one of several sinks; * for events that no sink takes")
	flags.StringVar(&f.topic, "topic", "", "only this topic")
	flags.StringVar(&f.error, "error", "", "only errors that contain this text, case-insensitive")
	flags.Var(&f.olderThan, "older-than", "only those that died longer ago, like 1h, or before a time, like 2026-01-02T15:00:00Z")
	flags.Var(&f.newerThan, "newer-than", "only those that died since, like 1h or 2026-01-02T15:00:00Z")
	flags.BoolVar(&f.all, "all", false, "all dead letters")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	c.Args = rejectPositionalIDs
}

func (f *deadFlags) bindClosed(c *cobra.Command) {
	c.Flags().BoolVar(&f.closed, "closed", false, "include those that were replayed or discarded, beside the open ones")
}

// rejectPositionalIDs points to --id if the arguments are ids.
func rejectPositionalIDs(c *cobra.Command, args []string) error {
	if _, _, err := admin.ParseIDs(args); len(args) == 0 || err != nil {
		return noArgs(c, args)
	}
	return usage("unexpected argument %s; expected %s --id %s", strings.Join(args, " "), c.CommandPath(), strings.Join(args, ","))
}

// requireSelection rejects a command without filters and --all.
func (f *deadFlags) requireSelection() error {
	filtered := len(f.ids) > 0 || f.sink != "" || f.topic != "" || f.error != "" || f.olderThan != (died{}) || f.newerThan != (died{})
	if !filtered && !f.all {
		return usage("no dead letters are selected; expected --id, another filter or --all")
	}
	return nil
}

func (f *deadFlags) filter() (buffer.DeadFilter, error) {
	filter := buffer.DeadFilter{Sink: f.sink, Topic: f.topic, Error: f.error, Closed: f.closed}
	filter.OlderThan, filter.Before = f.olderThan.ago, f.olderThan.at
	filter.NewerThan, filter.From = f.newerThan.ago, f.newerThan.at
	if f.all && len(f.ids) > 0 {
		return filter, usage("--all is used together with --id; expected one of them")
	}
	if len(f.ids) > 0 {
		var err error
		if filter.IDs, filter.UUIDs, err = admin.ParseIDs(f.ids); err != nil {
			return filter, usage("--id: %v", err)
		}
	}
	return filter, nil
}

// filterIDs are the ids in a filter, as text.
func filterIDs(f buffer.DeadFilter) []string {
	var all []string
	for _, id := range f.IDs {
		all = append(all, strconv.FormatInt(id, 10))
	}
	for _, id := range f.UUIDs {
		all = append(all, id.String())
	}
	return all
}

// deadLetters are the dead letters of a pipeline that match a filter.
type deadLetters struct {
	admin.DeadLetters
	pipeline string
	custom   buffer.CustomTable
	filter   buffer.DeadFilter
	// asked: somebody was asked about those that died until then; zero: there were none.
	asked bool
	until time.Time
	// unsendable returns why a replay is of no use: see the function of that name.
	unsendable func(context.Context) error
}

func deadLettersOf(p *config.Pipeline, b buffer.Buffer) admin.DeadLetters {
	return engine.DeadLetters(p, b)
}

// withDeadLetters opens the buffers of the selected pipelines and calls run.
func (a *app) withDeadLetters(c *cobra.Command, cfg *config.Config, f *deadFlags, run func(context.Context, []deadLetters) error) (err error) {
	filter, err := f.filter()
	if err != nil {
		return err
	}
	if err := cfg.CheckSources(); err != nil {
		return err
	}
	selected, err := selectPipelines(cfg, f.pipeline)
	if err != nil {
		return err
	}
	var all []deadLetters
	for _, p := range selected {
		b, errOpen := p.OpenBuffer("dead")
		if errOpen != nil {
			return errOpen
		}
		defer func() { err = errors.Join(err, b.Close()) }()
		wrong := func(ctx context.Context) error { return admin.Unsendable(ctx, b) }
		all = append(all, deadLetters{DeadLetters: deadLettersOf(p, b), pipeline: p.Name, custom: p.Source.Custom, filter: filter, unsendable: wrong})
	}
	if all, err = withSink(c.Context(), all, f.sink); err != nil {
		return err
	}
	if err := run(c.Context(), all); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), statusTimeout)
	defer cancel()
	for i := range all {
		if wrong := all[i].unsendable(ctx); wrong != nil {
			a.printErr(all[i].pipeline + ": nothing is sent: " + oneLine(a.forFile(wrong.Error())))
		}
	}
	return nil
}

// withSink returns those of pipelines that have a sink; all if the name is "".
func withSink(ctx context.Context, all []deadLetters, sink string) (some []deadLetters, err error) {
	if sink == "" {
		return all, nil
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var without []admin.DeadLetters
	for _, l := range all {
		has, err := l.HasSink(ctx, sink)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", l.pipeline, err)
		case has:
			some = append(some, l)
		default:
			without = append(without, l.DeadLetters)
		}
	}
	if some == nil {
		return nil, usage("--%w", admin.NoSinkError(sink, without...))
	}
	return some, nil
}

// each calls visit for every match, in order, until it returns false.
func (l *deadLetters) each(ctx context.Context, visit func(*buffer.DeadEvent) (more bool, err error)) error {
	if err := l.Each(ctx, l.filter, visit); err != nil {
		return fmt.Errorf("%s: %w", l.pipeline, err)
	}
	return nil
}

// newestTimeout is how long the database may take to find the newest dead letters: it reads all that match.
const newestTimeout = time.Minute

// newest returns the matches that died last, the last one first, without payloads.
func (l *deadLetters) newest(ctx context.Context, limit int) ([]buffer.DeadEvent, error) {
	ctx, cancel := context.WithTimeout(ctx, newestTimeout)
	defer cancel()
	events, err := l.Store.ListNewestDead(ctx, l.filter, limit)
	if err != nil {
		err = fmt.Errorf("%s: %w", l.pipeline, err)
	}
	return events, err
}

// countFor counts the matches that an action would close.
func (l *deadLetters) countFor(ctx context.Context, act admin.Action) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	n, err := l.CountFor(ctx, act, l.filter)
	if err != nil {
		err = fmt.Errorf("%s: %w", l.pipeline, err)
	}
	return n, err
}

// countAsked counts the matches that an action would close, of those that are there now: others may die until somebody has answered.
func (l *deadLetters) countAsked(ctx context.Context, act admin.Action) (int64, error) {
	newest, cancel := context.WithTimeout(ctx, newestTimeout)
	defer cancel()
	at, err := l.NewestDied(newest, l.filter)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", l.pipeline, err)
	}
	l.asked, l.until = true, at
	if at.IsZero() {
		return 0, nil
	}
	counted := *l
	counted.filter = admin.DiedUntil(l.filter, at)
	return counted.countFor(ctx, act)
}

// count counts the matches by state.
func (l *deadLetters) count(ctx context.Context) (buffer.DeadCount, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	n, err := l.Store.CountDead(ctx, l.filter)
	if err != nil {
		err = fmt.Errorf("%s: %w", l.pipeline, err)
	}
	return n, err
}
