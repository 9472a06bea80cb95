package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// change is replay or discard.
type change struct {
	verb, done string
	action     admin.Action
}

var (
	replay  = change{"replay", "replayed", admin.Replay}
	discard = change{"discard", "discarded", admin.Discard}
)

func (a *app) deadReplayCommand() *cobra.Command {
	return a.deadChangeCommand(replay, &cobra.Command{
		Use:   "replay",
		Short: "Send dead letters again",
		Long: `Replay inserts dead letters into the buffer again, under their old ids and due
immediately, and closes them. A running relay sends them. Dead letters whose ids are
already in the buffer, or whose rows a custom table refuses, are skipped. Of several
dead letters of one event at one sink, one is replayed; discard the others.

With --edit it opens the payload of one event in an editor ($VISUAL, $EDITOR or vi), in
a custom table the row, and replays what was saved; with --with-headers, headers and
payload as one JSON object. It changes all open dead letters of the event. An event that another sink still waits for cannot be edited.`,
		Example: "  relay dead replay -c relay.yaml --id 17 --id 18\n  relay dead replay -c relay.yaml --pipeline orders --error 'no such tenant' --dry-run\n  relay dead replay -c relay.yaml --id 17 --edit",
	})
}

func (a *app) deadDiscardCommand() *cobra.Command {
	return a.deadChangeCommand(discard, &cobra.Command{
		Use:     "discard",
		Short:   "Give dead letters up",
		Long:    "Discard closes dead letters. They stay in outbox_dead_letters and are never sent.",
		Example: "  relay dead discard -c relay.yaml --id 17\n  relay dead discard -c relay.yaml --pipeline orders --older-than 720h --reason 'the tenants are gone'",
	})
}

func (a *app) deadChangeCommand(what change, command *cobra.Command) *cobra.Command {
	var f deadFlags
	command.Long += "\n\n" + `If the pipeline has a dead_letter.hook, dead letters that it was not notified of yet
are skipped and counted.

The exit status is 1 if an event selected with --id was not changed.`
	var c *cobra.Command
	c = a.withoutSinks(command, func(_ *cobra.Command, cfg *config.Config) error {
		if err := f.requireSelection(); err != nil {
			return err
		}
		reason, err := admin.ParseReason(f.reason)
		if err != nil {
			return usage("--reason: %v", err)
		}
		f.reason = reason
		if f.edit && f.dryRun {
			return usage("--edit is used together with --dry-run; expected one of them")
		}
		if f.withHeaders && !f.edit {
			return usage("--with-headers is used without --edit; expected both")
		}
		return a.withDeadLetters(c, cfg, &f, func(ctx context.Context, all []deadLetters) error {
			if f.edit {
				return a.editAndReplay(ctx, all, &f)
			}
			return a.change(ctx, what, all, &f)
		})
	})
	f.bind(c)
	if what == replay {
		c.Flags().BoolVar(&f.edit, "edit", false, "edit the payload of one event first")
		c.Flags().BoolVar(&f.withHeaders, "with-headers", false, "with --edit: edit the headers too")
	}
	c.Flags().StringVar(&f.reason, "reason", "", "why, kept in closed_reason; at most 500 characters")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "count the dead letters, change nothing")
	c.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask for confirmation")
	return c
}

// change changes the dead letters of one pipeline after the other.
func (a *app) change(ctx context.Context, what change, all []deadLetters, f *deadFlags) error {
	before, err := openByID(ctx, all)
	if err != nil {
		return err
	}
	if !f.dryRun && !f.yes {
		if err := a.confirm(ctx, what, all); err != nil {
			return err
		}
	}
	results, failed := []admin.Changed{}, 0
	by := operator()
	for _, l := range all {
		l.filter.ClosedBy, l.filter.ClosedReason = by, f.reason
		bar := newProgress(a.stderr, what.verb+" "+l.pipeline)
		changed, err := l.change(ctx, what.action, f.dryRun, bar.set)
		bar.end()
		changed.Pipeline = l.pipeline
		changed.CleanReasons(a.redact, false)
		results = append(results, changed)
		if err != nil {
			a.fail(fmt.Errorf("%s: %w", l.pipeline, err))
			failed++
		}
	}
	if f.asJSON {
		if err := a.printJSON(results); err != nil {
			return err
		}
	} else if err := a.printChanged(what, withoutEmpty(results, failed)); err != nil {
		return err
	}
	return a.reportUnchanged(ctx, all, before, results, f.dryRun)
}

// change changes what matches. What died after somebody was asked stays open, and is counted.
func (l *deadLetters) change(ctx context.Context, act admin.Action, dryRun bool, progress func(done, total int64)) (changed admin.Changed, err error) {
	if !l.asked {
		return l.Change(ctx, act, l.filter, dryRun, progress)
	}
	if !l.until.IsZero() {
		if changed, err = l.Change(ctx, act, admin.DiedUntil(l.filter, l.until), dryRun, progress); err != nil {
			return changed, err
		}
	}
	changed.DiedMeanwhile, err = l.CountFor(ctx, act, admin.DiedAfter(l.filter, l.until))
	return changed, err
}

// withoutEmpty leaves out the pipelines of several that have nothing that matches. If none has, and none failed, it returns one result for all.
func withoutEmpty(results []admin.Changed, failed int) (some []admin.Changed) {
	if len(results) < 2 {
		return results
	}
	for _, r := range results {
		if !r.Empty() {
			some = append(some, r)
		}
	}
	if some == nil && failed == 0 {
		return []admin.Changed{{Pipeline: fmt.Sprintf("all %d pipelines", len(results)), DryRun: results[0].DryRun}}
	}
	return some
}

func (a *app) printChanged(what change, results []admin.Changed) error {
	for _, r := range results {
		text := fmt.Sprintf("%s: %s %s", r.Pipeline, what.done, countDeadLetters(r.Changed))
		if r.DryRun {
			text = fmt.Sprintf("%s: would %s %s", r.Pipeline, what.verb, countDeadLetters(r.Changed))
		}
		if r.Unnotified > 0 {
			text += fmt.Sprintf("; skipped %s: the dead-letter hook was not notified yet", admin.Count(r.Unnotified))
		}
		if n := r.Skipped - r.ClosedMeanwhile - r.Refused; n > 0 {
			text += fmt.Sprintf("; skipped %s: already in the buffer, or another dead letter of the event was replayed", admin.Count(n))
		}
		if r.Refused > 0 {
			text += fmt.Sprintf("; skipped %s: refused by the table (%s)", admin.Count(r.Refused), printable(oneLine(admin.RefusalsText(r.Refusals))))
		}
		if r.ClosedMeanwhile > 0 {
			text += fmt.Sprintf("; skipped %s: closed meanwhile", admin.Count(r.ClosedMeanwhile))
		}
		if r.DiedMeanwhile > 0 {
			text += fmt.Sprintf("; %s more died meanwhile: run it again", admin.Count(r.DiedMeanwhile))
		}
		for _, of := range r.Dropped {
			text += fmt.Sprintf("; skipped %s: sink %s is dropped", admin.Count(of.Letters), of.Sink)
			if of.Registered {
				text += fmt.Sprintf(" > relay sinks restore %s -c %s", of.Sink, a.config)
			}
		}
		if _, err := io.WriteString(a.stdout, text+"\n"); err != nil {
			return err
		}
	}
	return nil
}

func countDeadLetters(n int64) string { return plural(n, "dead letter", "dead letters") }

// operator is who runs the command, as user@host. sudo names the user that called it.
func operator() string {
	name := os.Getenv("SUDO_USER")
	if name == "" {
		name = fmt.Sprintf("uid %d", os.Getuid()) // it has no name in some containers
		if u, err := user.Current(); err == nil && u.Username != "" {
			name = u.Username
		}
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

// confirm asks for confirmation on a terminal. It sets which dead letters were counted in the question.
func (a *app) confirm(ctx context.Context, what change, all []deadLetters) error {
	if !isTerminal(os.Stdin) || !isTerminal(a.stderr) {
		return nil
	}
	var n int64
	var names []string
	for i := range all {
		l := &all[i]
		some, err := l.countAsked(ctx, what.action)
		if err != nil {
			return err
		}
		if some > 0 {
			n += some
			names = append(names, l.pipeline)
		}
	}
	if n == 0 {
		return nil
	}
	ok, err := a.newQuestions(os.Stdin).confirm(fmt.Sprintf("%s %s of %s?",
		strings.ToUpper(what.verb[:1])+what.verb[1:], countDeadLetters(n), strings.Join(names, ", ")))
	if err == nil && !ok || errors.Is(err, errNoAnswer) {
		return errors.New("nothing was changed")
	}
	return err
}

// deadLetterKey identifies a dead letter. An event may have several.
type deadLetterKey struct {
	pipeline, id string
	group        uuid.UUID
}

// openByID returns the open dead letters that --id selects. It rejects an id that several pipelines have, because those
// are different events.
func openByID(ctx context.Context, all []deadLetters) (map[deadLetterKey]bool, error) {
	keys := map[deadLetterKey]bool{}
	pipelines := map[string][]string{} // by id
	ids := filterIDs(all[0].filter)
	if len(ids) == 0 {
		return keys, nil
	}
	for _, l := range all {
		if err := l.each(ctx, func(e *buffer.DeadEvent) (bool, error) {
			id := e.Identity()
			keys[deadLetterKey{l.pipeline, id, e.GroupID}] = true
			if !slices.Contains(pipelines[id], l.pipeline) {
				pipelines[id] = append(pipelines[id], l.pipeline)
			}
			return true, nil
		}); err != nil {
			return nil, err
		}
	}
	for _, id := range ids {
		if names := pipelines[id]; len(names) > 1 {
			return nil, usage("several pipelines have a dead letter %s; expected --pipeline %s", id, strings.Join(names, " or --pipeline "))
		}
	}
	return keys, nil
}

// reportUnchanged prints why events selected with --id were not changed.
func (a *app) reportUnchanged(ctx context.Context, all []deadLetters, before map[deadLetterKey]bool, results []admin.Changed, dryRun bool) error {
	ids := filterIDs(all[0].filter)
	if len(ids) == 0 {
		return nil
	}
	why, changed := map[string]string{}, map[string]bool{}
	open, replayed := map[string]time.Time{}, map[string]time.Time{} // when the first died, and when another dead letter of the event was replayed
	for i, l := range all {
		l.filter.Closed = true
		if err := l.each(ctx, func(e *buffer.DeadEvent) (bool, error) {
			id := e.Identity()
			wasOpen := before[deadLetterKey{l.pipeline, id, e.GroupID}]
			switch isClosed := !e.ClosedAt.IsZero(); {
			case wasOpen && isClosed:
				changed[id] = true
			case isClosed:
				if e.ClosedAs == "replayed" && e.ClosedAt.After(replayed[id]) {
					replayed[id] = e.ClosedAt
				}
				if why[id] == "" {
					why[id] = "it was " + closedAgo(e)
				}
			case l.Notifies(e.Sink) && e.NotifiedAt.IsZero():
				why[id] = "the dead-letter hook was not notified yet"
			case slices.ContainsFunc(results[i].Dropped, func(of buffer.DroppedLetters) bool { return of.Sink == e.Sink }):
				why[id] = "sink " + e.Sink + " is dropped"
			case dryRun:
				changed[id] = true
			case results[i].Refusal(e) != "":
				why[id] = "the table refuses its row: " + printable(results[i].Refusal(e))
			case why[id] != "" && results[i].Refused > 0: // another dead letter of the event says why
			case e.Row != nil:
				why[id] = "its id, or another value that must be unique, is already in the buffer"
			default:
				why[id] = "its id is already in the buffer"
			}
			if at, known := open[id]; e.ClosedAt.IsZero() && (!known || e.DiedAt.Before(at)) {
				open[id] = e.DiedAt
			}
			return true, nil
		}); err != nil {
			return err
		}
	}
	for _, id := range ids {
		switch {
		case changed[id]:
		case !open[id].IsZero() && replayed[id].After(open[id]) && strings.HasPrefix(why[id], "its id"):
			a.fail(fmt.Errorf("%s: another dead letter of the event was replayed since, or its id is already in the buffer; relay dead discard closes this one", id))
		case why[id] != "":
			a.fail(fmt.Errorf("%s: %s", id, why[id]))
		default:
			a.fail(fmt.Errorf("%s: no dead letter has this id", id))
		}
	}
	return nil
}
