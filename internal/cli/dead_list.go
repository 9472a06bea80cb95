package cli

import (
	"cmp"
	"context"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// tableLimit is the default of --limit for a table.
const tableLimit = 100

func (a *app) deadListCommand() *cobra.Command {
	var f deadFlags
	var c *cobra.Command
	c = a.withoutSinks(&cobra.Command{
		Use:   "list",
		Short: "List dead letters",
		Long: `List shows the matching dead letters, the one that died last first, at most --limit.
If the errors do not fit beside the other columns of a terminal, each has lines of
its own.

With --by error it shows each error once: how many dead letters have it, when the last
one died, and the id of that one. Errors that differ only in numbers and ids are one.

With --by time it shows how many died in each hour, in UTC, the latest first, and when
the first and the last of them did; or in each day, if they died in more than --limit
hours.

With --json it shows all of them, ordered by event id, as an array of objects with the
columns of outbox_dead_letters, with payloads and headers as they were written.`,
		Example: "  relay dead list -c relay.yaml\n  relay dead list -c relay.yaml --by error\n  relay dead list -c relay.yaml --json | jq .[].event_id",
	}, func(_ *cobra.Command, cfg *config.Config) error {
		if f.limit < 0 {
			return usage("--limit is %d; expected 0 (no limit) or more", f.limit)
		}
		if f.by != "" && f.by != "error" && f.by != "time" {
			return usage("--by is %q; expected error or time", f.by)
		}
		if f.asJSON && !c.Flags().Changed("limit") {
			f.limit = 0
		}
		return a.withDeadLetters(c, cfg, &f, func(ctx context.Context, all []deadLetters) error {
			switch f.by {
			case "error":
				return a.listByError(ctx, all, &f)
			case "time":
				return a.listByTime(ctx, all, &f)
			}
			if f.asJSON {
				return a.listJSON(ctx, all, f.limit)
			}
			return a.listTable(ctx, all, &f)
		})
	})
	f.bind(c)
	f.bindClosed(c)
	c.Flags().IntVar(&f.limit, "limit", tableLimit, "maximum number of dead letters, errors, or hours; 0 for all")
	c.Flags().StringVar(&f.by, "by", "", "error: count the dead letters of each error; time: of each hour or day")
	return c
}

// listJSON streams dead letters as a JSON array. If a pipeline cannot be read, it
// prints the error and continues with the others.
func (a *app) listJSON(ctx context.Context, all []deadLetters, limit int) error {
	count := 0
	if _, err := io.WriteString(a.stdout, "["); err != nil {
		return err
	}
	for _, l := range all {
		err := l.each(ctx, func(e *buffer.DeadEvent) (bool, error) {
			object, err := admin.NewDeadLetter(e, a.redact).Text("  ")
			if err != nil {
				return false, err
			}
			between := "\n  "
			if count > 0 {
				between = ",\n  "
			}
			count++
			_, err = a.stdout.Write(append([]byte(between), object...))
			return count != limit, err
		})
		if err != nil {
			a.fail(err)
		}
		if limit > 0 && count == limit {
			break
		}
	}
	end := "]\n"
	if count > 0 {
		end = "\n]\n"
	}
	_, err := io.WriteString(a.stdout, end)
	return err
}

// listTable prints dead letters as a table, the one that died last first.
func (a *app) listTable(ctx context.Context, all []deadLetters, f *deadFlags) error {
	head := []string{"PIPELINE"}
	several := hasSeveralSinks(all)
	if several {
		head = append(head, "SINK")
	}
	head = append(head, "ID", "TOPIC", "KEY", "ATTEMPTS", "DIED", "NOTIFIED")
	if f.closed {
		head = append(head, "CLOSED")
	}
	type listed struct {
		buffer.DeadEvent
		of deadLetters
	}
	var newest []listed
	limit := cmp.Or(f.limit, math.MaxInt32)
	var matching int64
	for _, l := range all {
		n, err := l.count(ctx)
		if err != nil {
			a.fail(err)
			continue
		}
		matching += n.Open
		if f.closed {
			matching += n.Closed
		}
		some, err := l.newest(ctx, limit)
		if err != nil {
			a.fail(err)
		}
		for _, e := range some {
			newest = append(newest, listed{e, l})
		}
	}
	slices.SortStableFunc(newest, func(a, b listed) int { return b.DiedAt.Compare(a.DiedAt) })
	newest = newest[:min(len(newest), limit)]
	rows := [][]string{append(head, "ERROR")}
	for i := range newest {
		rows = append(rows, a.row(newest[i].of, &newest[i].DeadEvent, several, f.closed))
	}
	if len(newest) == 0 && a.failed { // no table without a pipeline
		return nil
	}
	if _, err := io.WriteString(a.stdout, errorTable(rows, terminalWidth(a.stdout))); err != nil {
		return err
	}
	if more := matching - int64(len(newest)); more > 0 && f.limit > 0 && len(newest) == limit {
		a.printErr(admin.Count(more) + " more; use --limit 0 to show all, or --by error to count them by error")
	}
	return nil
}

func hasSeveralSinks(all []deadLetters) bool {
	return slices.ContainsFunc(all, func(l deadLetters) bool { return l.Sinks != nil })
}

func (a *app) row(l deadLetters, d *buffer.DeadEvent, several, closed bool) []string {
	key := "-"
	if d.Key != nil {
		key = *d.Key
	}
	notified := "-" // no hook
	switch {
	case !d.NotifiedAt.IsZero():
		notified = "yes"
	case l.Notifies(d.Sink):
		notified = "no"
	}
	row := []string{d.Pipeline}
	if several {
		row = append(row, printable(cmp.Or(d.Sink, "-")))
	}
	row = append(row, d.Identity(), printable(d.Topic), printable(key), strconv.Itoa(d.Attempts), ago(d.DiedAt), notified)
	if closed {
		row = append(row, closedAgo(d))
	}
	return append(row, printable(a.redact(d.Error)))
}

// closedAgo says how, when and by whom a dead letter was closed, "-" if it is open.
func closedAgo(d *buffer.DeadEvent) string {
	if d.ClosedAt.IsZero() {
		return "-"
	}
	return cmp.Or(d.ClosedAs, "closed") + " " + ago(d.ClosedAt) + " ago" + closedBy(d)
}

// closedBy says who closed a dead letter, if that is known.
func closedBy(d *buffer.DeadEvent) string {
	if d.ClosedBy == "" {
		return ""
	}
	return " by " + printable(d.ClosedBy)
}

// ago is the time since at by the local clock, "-" if at is zero.
func ago(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return admin.Age(max(0, time.Since(at)))
}
