package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func (a *app) deadCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "dead",
		Short: "List, show, replay or discard dead letters",
		Long: `An event that was refused for good is a dead letter until somebody decides: replay
sends it again, under its old id, discard gives it up. Either closes it; a closed
one stays in outbox_dead_letters for the record, and list --closed shows it.

All take the same filters, and mean the dead letters that match all of them.`,
		Example: `  relay dead list -c relay.yaml --error "422" --newer-than 1h
  relay dead show -c relay.yaml --id 17
  relay dead replay -c relay.yaml --pipeline orders --topic orders.created --dry-run
  relay dead discard -c relay.yaml --pipeline orders --all`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.deadListCommand(), a.deadShowCommand(), a.deadReplayCommand(), a.deadDiscardCommand())
	return c
}

// deadFlags are what the dead commands are told.
type deadFlags struct {
	pipeline             string
	ids                  []string
	topic, error         string
	olderThan, newerThan time.Duration
	all, closed, asJSON  bool
	dryRun, yes          bool
	limit                int
}

func (f *deadFlags) bind(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.pipeline, "pipeline", "", "this pipeline's only")
	flags.StringSliceVar(&f.ids, "id", nil, "these events only, numbers or uuids; several times, or 17,18")
	flags.StringVar(&f.topic, "topic", "", "this topic's only")
	flags.StringVar(&f.error, "error", "", "those with this text in their error, upper and lower case alike")
	flags.DurationVar(&f.olderThan, "older-than", 0, "those that died longer ago, like 1h")
	flags.DurationVar(&f.newerThan, "newer-than", 0, "those that died since, like 1h")
	flags.BoolVar(&f.all, "all", false, "all of them")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	c.Args = idsByFlag
}

// idsByFlag says where the ids go that stand behind a command.
func idsByFlag(c *cobra.Command, args []string) error {
	if _, _, err := admin.Named(args); len(args) == 0 || err != nil {
		return cobra.NoArgs(c, args)
	}
	return usage("%s is no command: %s --id %s was expected", strings.Join(args, " "), c.CommandPath(), strings.Join(args, ","))
}

// chosen refuses a command that does not say which letters it means.
func (f *deadFlags) chosen() error {
	filtered := len(f.ids) > 0 || f.topic != "" || f.error != "" || f.olderThan > 0 || f.newerThan > 0
	if !filtered && !f.all {
		return usage("which dead letters? --id, a filter or --all was expected")
	}
	return nil
}

// filter makes of the flags what a buffer takes.
func (f *deadFlags) filter() (buffer.DeadFilter, error) {
	filter := buffer.DeadFilter{Topic: f.topic, Error: f.error, OlderThan: f.olderThan, NewerThan: f.newerThan, Closed: f.closed}
	if f.olderThan < 0 || f.newerThan < 0 {
		return filter, usage("--older-than and --newer-than are times ago, like 1h")
	}
	if f.all && len(f.ids) > 0 {
		return filter, usage("--all stands beside --id, one of them was expected")
	}
	if len(f.ids) > 0 {
		var err error
		if filter.IDs, filter.UUIDs, err = admin.Named(f.ids); err != nil {
			return filter, usage("--id: %v", err)
		}
	}
	return filter, nil
}

// named are the events that a filter names, as they are called.
func named(f buffer.DeadFilter) []string {
	var all []string
	for _, id := range f.IDs {
		all = append(all, strconv.FormatInt(id, 10))
	}
	for _, id := range f.UUIDs {
		all = append(all, id.String())
	}
	return all
}

// letters are one pipeline's dead letters.
type letters struct {
	config.Letters
	pipeline *config.Pipeline
	buffer   config.Buffer
	filter   buffer.DeadFilter
}

// withLetters opens the buffers that are meant, and has work done with them.
func (a *app) withLetters(c *cobra.Command, cfg *config.Config, f *deadFlags, work func(context.Context, []letters) error) (err error) {
	filter, err := f.filter()
	if err != nil {
		return err
	}
	if err := cfg.CheckSources(); err != nil {
		return err
	}
	chosen, err := choose(cfg, f.pipeline)
	if err != nil {
		return err
	}
	var all []letters
	defer func() {
		for _, l := range all {
			err = errors.Join(err, l.buffer.Close())
		}
	}()
	for _, p := range chosen {
		b, err := p.OpenBuffer("dead")
		if err != nil {
			return err
		}
		all = append(all, letters{p.Letters(b), p, b, filter})
	}
	return work(c.Context(), all)
}

// choose returns the pipeline of that name, or all when it is "".
func choose(cfg *config.Config, name string) ([]*config.Pipeline, error) {
	var chosen []*config.Pipeline
	var names []string
	for i := range cfg.Pipelines {
		p := &cfg.Pipelines[i]
		names = append(names, p.Name)
		if name == "" || p.Name == name {
			chosen = append(chosen, p)
		}
	}
	if len(chosen) == 0 {
		return nil, usage("there is no pipeline %q, %s was expected", name, strings.Join(names, " or "))
	}
	return chosen, nil
}

// pageSize is how many dead letters are read at once: payloads may be large.
const pageSize = 200

// each hands the letters that match to tell, in order, until it returns false. A page
// takes no longer than statusTimeout.
func (l *letters) each(ctx context.Context, tell func(*outbox.Event) (more bool, err error)) error {
	var after *buffer.DeadKey
	for {
		page, cancel := context.WithTimeout(ctx, statusTimeout)
		events, err := l.ListDead(page, l.filter, after, pageSize)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", l.pipeline.Name, err)
		}
		for i := range events {
			e := &events[i]
			if more, err := tell(e); err != nil || !more {
				return err
			}
			after = &buffer.DeadKey{EventID: e.ID, GroupID: e.DeadLetter.GroupID}
		}
		if len(events) < pageSize {
			return nil
		}
	}
}

// count counts those that match, by state.
func (l *letters) count(ctx context.Context) (buffer.DeadCount, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	n, err := l.CountDead(ctx, l.filter)
	if err != nil {
		err = fmt.Errorf("%s: %w", l.pipeline.Name, err)
	}
	return n, err
}

// unambiguous refuses ids of which several pipelines have letters: they are different
// events.
func unambiguous(ctx context.Context, all []letters) error {
	if len(all) == 1 || len(named(all[0].filter)) == 0 {
		return nil
	}
	has := map[string][]string{}
	for _, l := range all {
		if err := l.each(ctx, func(e *outbox.Event) (bool, error) {
			if names := has[e.Identity()]; !slices.Contains(names, l.pipeline.Name) {
				has[e.Identity()] = append(names, l.pipeline.Name)
			}
			return true, nil
		}); err != nil {
			return err
		}
	}
	for _, id := range named(all[0].filter) {
		if names := has[id]; len(names) > 1 {
			return usage("several pipelines have a dead letter %s: --pipeline %s was expected", id, strings.Join(names, " or --pipeline "))
		}
	}
	return nil
}
