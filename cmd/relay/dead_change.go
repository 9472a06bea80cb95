package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox"
)

// change is what replay and discard have different.
type change struct {
	verb, done string
	act        func(*letters) admin.Act
}

var (
	replay  = change{"replay", "replayed", func(l *letters) admin.Act { return l.Replay }}
	discard = change{"discard", "discarded", func(l *letters) admin.Act { return l.Discard }}
)

func (a *app) deadReplayCommand() *cobra.Command {
	return a.deadChangeCommand(replay, &cobra.Command{
		Use:   "replay",
		Short: "Send dead letters again",
		Long: `Replay puts dead letters back into the buffer, each under its old id and due at
once, and closes them. Nothing is sent by this command: a running relay does it. A
letter whose id is in the buffer already is left alone.`,
		Example: "  relay dead replay -c relay.yaml --id 17 --id 18\n  relay dead replay -c relay.yaml --pipeline orders --error 'no such tenant' --dry-run",
	})
}

func (a *app) deadDiscardCommand() *cobra.Command {
	return a.deadChangeCommand(discard, &cobra.Command{
		Use:     "discard",
		Short:   "Give dead letters up",
		Long:    "Discard closes dead letters: they stay in outbox_dead_letters, and are never sent.",
		Example: "  relay dead discard -c relay.yaml --id 17\n  relay dead discard -c relay.yaml --pipeline orders --older-than 720h",
	})
}

func (a *app) deadChangeCommand(what change, command *cobra.Command) *cobra.Command {
	var f deadFlags
	command.Long += "\n\n" + `Where the pipeline has a dead_letter.hook, it hears of a letter first: those it has not
heard of are left alone, and counted.

The exit status is 1 when an event that was named with --id was not changed.`
	var c *cobra.Command
	c = a.configured(command, func(_ *cobra.Command, cfg *config.Config) error {
		if err := f.chosen(); err != nil {
			return err
		}
		return a.withLetters(c, cfg, &f, func(ctx context.Context, all []letters) error {
			if err := unambiguous(ctx, all); err != nil {
				return err
			}
			return a.change(ctx, what, all, &f)
		})
	})
	f.bind(c)
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "only say how many it would be")
	c.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask, on a terminal")
	return c
}

// change does it, pipeline after pipeline, and tells of each.
func (a *app) change(ctx context.Context, what change, all []letters, f *deadFlags) error {
	before, err := open(ctx, all)
	if err != nil {
		return err
	}
	if !f.dryRun && !f.yes {
		if err := a.sure(ctx, what, all); err != nil {
			return err
		}
	}
	results := []admin.Changed{}
	for i := range all {
		l := &all[i]
		bar := newProgress(a.stderr, what.verb+" "+l.pipeline.Name)
		changed, err := admin.Change(ctx, l, what.act(l), l.filter, f.dryRun, bar.set)
		bar.end()
		changed.Pipeline = l.pipeline.Name
		results = append(results, changed)
		if err != nil {
			a.fail(fmt.Errorf("%s: %w", l.pipeline.Name, err))
		}
	}
	if f.asJSON {
		if err := a.printJSON(results); err != nil {
			return err
		}
	} else if err := a.tellChanged(what, results); err != nil {
		return err
	}
	return a.tellNamed(ctx, all, before, f.dryRun)
}

func (a *app) tellChanged(what change, results []admin.Changed) error {
	for _, r := range results {
		text := fmt.Sprintf("%s: %s %s", r.Pipeline, what.done, lettersOf(r.Changed))
		if r.DryRun {
			text = fmt.Sprintf("%s: would %s %s", r.Pipeline, what.verb, lettersOf(r.Changed))
		}
		if r.Untold > 0 {
			text += fmt.Sprintf("; %s left: the dead-letter hook has not heard of them yet", admin.Count(r.Untold))
		}
		if r.Skipped > 0 {
			text += fmt.Sprintf("; %s left: their ids are in the buffer, or somebody else closed them", admin.Count(r.Skipped))
		}
		if _, err := io.WriteString(a.stdout, text+"\n"); err != nil {
			return err
		}
	}
	return nil
}

func lettersOf(n int64) string {
	if n == 1 {
		return "1 dead letter"
	}
	return admin.Count(n) + " dead letters"
}

// sure asks, where there is somebody to ask, with the count.
func (a *app) sure(ctx context.Context, what change, all []letters) error {
	if !isTerminal(os.Stdin) || !isTerminal(a.stderr) {
		return nil
	}
	var n int64
	var names []string
	for _, l := range all {
		some, err := l.count(ctx)
		if err != nil {
			return err
		}
		if l.Hooked() {
			some.Open -= some.Unnotified
		}
		if some.Open > 0 {
			n += some.Open
			names = append(names, l.pipeline.Name)
		}
	}
	if n == 0 {
		return nil
	}
	fmt.Fprintf(a.stderr, "%s %s of %s? [y/N] ", strings.ToUpper(what.verb[:1])+what.verb[1:], lettersOf(n), strings.Join(names, ", "))
	answer, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("nothing was changed")
	}
	return nil
}

// letterKey tells dead letters of one event apart.
type letterKey struct {
	pipeline, id string
	group        uuid.UUID
}

// open lists the open letters that were named by their ids.
func open(ctx context.Context, all []letters) (map[letterKey]bool, error) {
	keys := map[letterKey]bool{}
	for _, l := range all {
		if len(named(l.filter)) == 0 {
			continue
		}
		if err := l.each(ctx, func(e *outbox.Event) (bool, error) {
			keys[letterKey{l.pipeline.Name, e.Identity(), e.DeadLetter.GroupID}] = true
			return true, nil
		}); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// tellNamed says of each event that was named and not changed why.
func (a *app) tellNamed(ctx context.Context, all []letters, before map[letterKey]bool, dryRun bool) error {
	why, changed := map[string]string{}, map[string]bool{}
	for _, l := range all {
		if len(named(l.filter)) == 0 {
			continue
		}
		l.filter.Closed = true
		if err := l.each(ctx, func(e *outbox.Event) (bool, error) {
			id := e.Identity()
			wasOpen := before[letterKey{l.pipeline.Name, e.Identity(), e.DeadLetter.GroupID}]
			switch isClosed := !e.DeadLetter.ClosedAt.IsZero(); {
			case wasOpen && isClosed:
				changed[id] = true
			case isClosed:
				if why[id] == "" {
					why[id] = "it was closed before, " + ago(e.DeadLetter.ClosedAt) + " ago"
				}
			case l.Hooked() && e.DeadLetter.NotifiedAt.IsZero():
				why[id] = "the dead-letter hook has not heard of it yet"
			case dryRun:
				changed[id] = true
			default:
				why[id] = "its id is in the buffer"
			}
			return true, nil
		}); err != nil {
			return err
		}
	}
	for _, id := range named(all[0].filter) {
		switch {
		case changed[id]:
		case why[id] != "":
			a.fail(fmt.Errorf("%s: %s", id, why[id]))
		default:
			a.fail(fmt.Errorf("%s: there is no such dead letter", id))
		}
	}
	return nil
}
