package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func (a *app) sinksCommand() *cobra.Command {
	return groupOf(&cobra.Command{
		Use:   "sinks",
		Short: "List, drop, restore or fill the sinks that events are routed to",
		Long: `The events of a pipeline with several sinks are routed to the sinks in table
outbox_sinks. A relay adds its sinks when it starts; only a command drops one. A sink
that was removed from the configuration gets events until it is dropped, because
another relay may still serve it.`,
		Example: "  relay sinks list -c relay.yaml\n  relay sinks drop crm -c relay.yaml\n  relay sinks restore crm -c relay.yaml",
	}, a.sinksListCommand(), a.sinksDropCommand(), a.sinksRestoreCommand(), a.sinksFillCommand())
}

func (a *app) sinksListCommand() *cobra.Command {
	var (
		pipeline string
		asJSON   bool
	)
	c := a.withoutSinks(&cobra.Command{
		Use:   "list",
		Short: "List the sinks and what waits for them",
		Long: `List shows every sink that events are routed to, and the dropped ones: the topics that it
takes, the batches and events that wait for it or are being sent, when a relay that
serves it was last seen running (to the minute), and since when it is dropped.`,
		Example: "  relay sinks list -c relay.yaml\n  relay sinks list -c relay.yaml --pipeline orders --json",
	}, func(c *cobra.Command, cfg *config.Config) error {
		registries, err := a.openRegistries(c.Context(), cfg, pipeline)
		defer closeRegistries(registries)
		if err != nil {
			return err
		}
		switch reports := sinkReports(registries); {
		case a.failed && len(reports) == 0:
			return nil
		case asJSON:
			return a.printJSON(reports)
		}
		_, err = io.WriteString(a.stdout, a.forFile(sinksTable(registries)))
		return err
	})
	c.Flags().StringVar(&pipeline, "pipeline", "", "of this pipeline only (default all)")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) sinksDropCommand() *cobra.Command {
	var (
		pipeline  string
		dead, yes bool
	)
	c := a.withSink(&cobra.Command{
		Use:   "drop NAME",
		Short: "Drop a sink and what waits for it",
		Long: `Drop ends a sink: nothing more is routed to it, and what waits for it is never sent
there. An event that waits for no other sink is deleted; with --dead the events become
dead letters of the sink. A batch that a relay is sending is ended later, by any
running relay, if it was not delivered.

Remove the sink from the configuration too: a relay that is configured with a dropped
sink logs an error and does not serve it. "default" is what waits for the single sink
that the pipeline had before.`,
		Example: "  relay sinks drop crm -c relay.yaml\n  relay sinks drop crm -c relay.yaml --dead --yes",
	}, &pipeline, func(ctx context.Context, r *registry, s *buffer.RegisteredSink) error {
		as := buffer.DroppedDiscarded
		if dead {
			as = buffer.DroppedDead
		}
		if !yes {
			if err := a.confirmDrop(r.pipeline.Name, s, as); err != nil {
				return err
			}
		}
		return a.drop(ctx, r, s, as)
	})
	c.Flags().StringVar(&pipeline, "pipeline", "", "of this pipeline")
	c.Flags().BoolVar(&dead, "dead", false, "make the events that wait dead letters")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	return c
}

func (a *app) sinksRestoreCommand() *cobra.Command {
	var pipeline string
	c := a.withSink(&cobra.Command{
		Use:   "restore NAME",
		Short: "Take back the drop of a sink",
		Long: `Restore routes events to a dropped sink again, those that are routed from now on. What was
ended stays ended.`,
		Example: "  relay sinks restore crm -c relay.yaml",
	}, &pipeline, func(ctx context.Context, r *registry, s *buffer.RegisteredSink) error {
		if s.DroppedAt.IsZero() {
			return fmt.Errorf("sink %s of %s is not dropped", s.Name, r.pipeline.Name)
		}
		if err := r.RestoreSink(ctx, s.Name); err != nil {
			return fmt.Errorf("%s: %w", r.pipeline.Name, err)
		}
		if _, err := fmt.Fprintf(a.stdout, "%s: restored sink %s\n", r.pipeline.Name, s.Name); err != nil {
			return err
		}
		return a.reportReplayable(ctx, r, s.Name)
	})
	c.Flags().StringVar(&pipeline, "pipeline", "", "of this pipeline")
	return c
}

// reportReplayable says how many dead letters of a sink can be replayed.
func (a *app) reportReplayable(ctx context.Context, r *registry, sink string) error {
	store, ok := r.SinkRegistry.(buffer.Buffer)
	if !ok {
		return nil
	}
	n, err := deadLettersOf(r.pipeline, store).CountFor(ctx, admin.Replay, buffer.DeadFilter{Sink: sink})
	if err != nil {
		return fmt.Errorf("%s: %w", r.pipeline.Name, err)
	}
	if n > 0 {
		_, err = fmt.Fprintf(a.stdout, "%s: %s of %s can be replayed now > relay dead replay --sink %s -c %s\n", r.pipeline.Name, countDeadLetters(n), sink, sink, a.config)
	}
	return err
}

// registry is the registry of a pipeline, opened, and its sinks; those are nil for a single sink.
type registry struct {
	buffer.SinkRegistry
	pipeline *config.Pipeline
	sinks    []buffer.RegisteredSink
	relays   []buffer.Relay
	close    func() error
}

// openRegistries opens the registries of a pipeline, or of all, and prints the errors of those that cannot be read. The caller closes
// them.
func (a *app) openRegistries(ctx context.Context, cfg *config.Config, pipeline string) (all []*registry, err error) {
	if err := cfg.CheckSources(); err != nil {
		return nil, err
	}
	selected, err := selectPipelines(cfg, pipeline)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	for _, p := range selected {
		b, err := p.OpenBuffer("sinks")
		if err != nil {
			return all, err
		}
		r := &registry{pipeline: p, close: b.Close}
		all = append(all, r)
		var ok bool
		if r.SinkRegistry, ok = b.(buffer.SinkRegistry); !ok {
			continue
		}
		if r.sinks, err = r.Sinks(ctx); err != nil {
			a.fail(fmt.Errorf("%s: %w", p.Name, err))
			continue
		}
		status, err := b.Status(ctx)
		if err != nil {
			a.fail(fmt.Errorf("%s: %w", p.Name, err))
		}
		r.relays = status.Relays
	}
	return all, nil
}

func closeRegistries(all []*registry) {
	for _, r := range all {
		_ = r.close() // nothing is written
	}
}

// withSink makes a command about one sink, whose name is its argument.
func (a *app) withSink(c *cobra.Command, pipeline *string, run func(context.Context, *registry, *buffer.RegisteredSink) error) *cobra.Command {
	var name string
	c.Args = func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usage("%d names are given; expected that of one sink: %s", len(args), strings.TrimSpace(c.Example))
		}
		return nil
	}
	c = a.withoutSinks(c, func(c *cobra.Command, cfg *config.Config) error {
		registries, err := a.openRegistries(c.Context(), cfg, *pipeline)
		defer closeRegistries(registries)
		if err != nil || a.failed {
			return err
		}
		r, s, err := a.findSink(registries, name)
		if err != nil {
			return err
		}
		return run(c.Context(), r, s)
	})
	configured := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		name = args[0]
		return configured(c, nil)
	}
	return c
}

// findSink returns the sink with a name, which one of the pipelines has.
func (a *app) findSink(registries []*registry, name string) (found *registry, s *buffer.RegisteredSink, err error) {
	var known, having []string
	configured := false
	for _, r := range registries {
		configured = configured || slices.Contains(r.pipeline.SinkNames(), name)
		for i := range r.sinks {
			if !slices.Contains(known, r.sinks[i].Name) {
				known = append(known, r.sinks[i].Name)
			}
			if r.sinks[i].Name == name {
				found, s = r, &r.sinks[i]
				having = append(having, "--pipeline "+r.pipeline.Name)
			}
		}
	}
	switch {
	case len(having) == 0 && configured:
		return nil, nil, usage("sink %s is in %s, but no relay has registered it; start a relay with it first: relay run -c %s", name, a.config, a.config)
	case len(known) == 0:
		return nil, nil, usage("no sink is %q; no pipeline has several sinks, or no relay has run with them yet", name)
	case len(having) == 0:
		return nil, nil, usage("no sink is %q; expected %s", name, strings.Join(known, " or "))
	case len(having) > 1:
		return nil, nil, usage("several pipelines have a sink %s; expected %s", name, strings.Join(having, " or "))
	}
	return found, s, nil
}

// confirmDrop asks for confirmation on a terminal.
func (a *app) confirmDrop(pipeline string, s *buffer.RegisteredSink, as buffer.Dropped) error {
	if !isTerminal(os.Stdin) || !isTerminal(a.stderr) {
		return nil
	}
	question := fmt.Sprintf("Drop sink %s of %s?", s.Name, pipeline)
	if s.Events > 0 {
		what := "are never sent there"
		if as == buffer.DroppedDead {
			what = "become dead letters"
		}
		question += fmt.Sprintf(" %s that wait for it %s.", plural(s.Events, "event", "events"), what)
	}
	ok, err := a.newQuestions(os.Stdin).confirm(question)
	if err == nil && !ok || errors.Is(err, errNoAnswer) {
		return errors.New("nothing was changed")
	}
	return err
}

// endAtOnce is how many batches a drop ends before it looks again.
const endAtOnce = 100

// drop drops a sink and ends its batches.
func (a *app) drop(ctx context.Context, r *registry, s *buffer.RegisteredSink, as buffer.Dropped) error {
	fail := func(err error) error { return fmt.Errorf("%s: %w", r.pipeline.Name, err) }
	if err := r.DropSink(ctx, s.Name, as); err != nil {
		return fail(err)
	}
	var total buffer.Ended
	bar := newProgress(a.stderr, "drop "+s.Name)
	defer bar.end()
	for {
		ended, err := r.EndDropped(ctx, endAtOnce)
		total.Batches += ended.Batches
		total.Events += ended.Events
		bar.set(total.Batches, max(s.Batches, total.Batches))
		if err != nil {
			return fail(fmt.Errorf("sink %s is dropped; ending its batches: %w", s.Name, err))
		}
		if ended.Batches == 0 {
			break
		}
	}
	text := fmt.Sprintf("%s: dropped sink %s", r.pipeline.Name, s.Name)
	if !s.DroppedAt.IsZero() {
		text = fmt.Sprintf("%s: sink %s was dropped before", r.pipeline.Name, s.Name)
	}
	if total.Batches > 0 {
		what := "ended without being sent there"
		if as == buffer.DroppedDead {
			what = "became dead letters"
		}
		text += fmt.Sprintf("; %s in %s %s", plural(total.Events, "event", "events"), plural(total.Batches, "batch", "batches"), what)
	}
	after, err := r.Sinks(ctx)
	if err != nil {
		return fail(err)
	}
	for i := range after {
		if after[i].Name == s.Name && after[i].Batches > 0 {
			text += fmt.Sprintf("; %s being sent or locked, and ended by a running relay later", plural(after[i].Batches, "batch is", "batches are"))
		}
	}
	text += "\n"
	if s.Configured {
		text += fmt.Sprintf("%s: remove sink %s from %s, too\n", r.pipeline.Name, s.Name, a.config)
	}
	_, err = io.WriteString(a.stdout, text)
	return err
}

// sinkReport is a sink in the output of relay sinks list --json.
type sinkReport struct {
	Pipeline   string     `json:"pipeline"`
	Name       string     `json:"name"`
	Registered bool       `json:"registered"`
	Configured bool       `json:"configured"`
	Match      []string   `json:"match"`
	Formerly   []string   `json:"formerly"`
	Batches    int64      `json:"batches"`
	Events     int64      `json:"events"`
	SeenAt     *time.Time `json:"seen_at"`
	DroppedAt  *time.Time `json:"dropped_at"`
	DroppedAs  string     `json:"dropped_as,omitempty"`
}

func sinkReports(registries []*registry) []sinkReport {
	reports := []sinkReport{}
	for _, r := range registries {
		for _, s := range r.sinks {
			one := sinkReport{
				Pipeline: r.pipeline.Name, Name: s.Name, Registered: s.Registered, Configured: s.Configured,
				Match: append([]string{}, s.Match...), Formerly: append([]string{}, s.Formerly...),
				Batches: s.Batches, Events: s.Events, DroppedAs: string(s.DroppedAs),
			}
			if !s.SeenAt.IsZero() {
				one.SeenAt = &s.SeenAt
			}
			if !s.DroppedAt.IsZero() {
				one.DroppedAt = &s.DroppedAt
			}
			reports = append(reports, one)
		}
	}
	return reports
}

// served says when a relay that serves a sink was last seen: now if one runs that reports it.
func (r *registry) served(s *buffer.RegisteredSink) string {
	unseen := s.Unseen // to the minute
	for i := range r.relays {
		if of := &r.relays[i]; of.Sink == s.Name && s.DroppedAt.IsZero() {
			unseen = min(unseen, of.Seen)
		}
	}
	switch {
	case s.DroppedAt.IsZero() && slices.ContainsFunc(r.relays, func(of buffer.Relay) bool { return of.Sink == s.Name && of.Runs() }):
		return "now"
	case s.SeenAt.IsZero():
		return "never"
	case s.Served():
		return admin.Age(unseen) + " ago"
	}
	return s.SeenAt.UTC().Format(time.DateTime)
}

// sinksTable formats registries for people.
func sinksTable(registries []*registry) string {
	rows := [][]string{{"PIPELINE", "SINK", "BATCHES", "EVENTS", "SERVED", "DROPPED", "MATCH"}}
	notes := ""
	for _, r := range registries {
		for i := range r.sinks {
			s := &r.sinks[i]
			served, dropped, match := r.served(s), "-", strings.Join(s.Match, " ")
			if !s.DroppedAt.IsZero() {
				dropped = s.DroppedAt.UTC().Format(time.DateTime)
			}
			if match == "" && s.Registered {
				match = "#"
			}
			rows = append(rows, []string{r.pipeline.Name, s.Name, admin.Count(s.Batches), admin.Count(s.Events), served, dropped, match})
			if f, ok := s.MatchFinding(); ok {
				notes += fmt.Sprintf("%s: %s: %s. > %s\n", r.pipeline.Name, f.Subject, f.Text, f.Fix)
			}
			if f, ok := s.Finding(); ok {
				notes += fmt.Sprintf("%s: %s: %s. > %s\n", r.pipeline.Name, f.Subject, f.Text, f.Fix)
			}
		}
	}
	if len(rows) == 1 {
		return "no sinks are registered: no pipeline has several, or no relay has run with them yet\n"
	}
	return columns(rows, 0) + notes
}
