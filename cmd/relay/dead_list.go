package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox"
)

// tableLimit is how many dead letters a table shows unless it is told.
const tableLimit = 100

func (a *app) deadListCommand() *cobra.Command {
	var f deadFlags
	var c *cobra.Command
	c = a.configured(&cobra.Command{
		Use:   "list",
		Short: "List dead letters",
		Long: `List shows the dead letters that match, a line each, the first 100 unless --limit
says otherwise. With --json it is all of them, whole, as an array of objects that are
named like the columns of outbox_dead_letters.`,
		Example: "  relay dead list -c relay.yaml\n  relay dead list -c relay.yaml --json | jq .[].event_id",
	}, func(_ *cobra.Command, cfg *config.Config) error {
		if f.limit < 0 {
			return usage("--limit is %d, 0 (all) or more was expected", f.limit)
		}
		if f.asJSON && !c.Flags().Changed("limit") {
			f.limit = 0
		}
		return a.withLetters(c, cfg, &f, func(ctx context.Context, all []letters) error {
			if f.asJSON {
				return a.listJSON(ctx, all, f.limit)
			}
			return a.listTable(ctx, all, &f)
		})
	})
	f.bind(c)
	c.Flags().BoolVar(&f.closed, "closed", false, "those that were replayed or discarded too")
	c.Flags().IntVar(&f.limit, "limit", tableLimit, "show so many; 0: all")
	return c
}

// listJSON prints letters as they are read: there may be many. A pipeline that cannot be
// asked is told, and the others are shown all the same.
func (a *app) listJSON(ctx context.Context, all []letters, limit int) error {
	shown := 0
	if _, err := io.WriteString(a.stdout, "["); err != nil {
		return err
	}
	for _, l := range all {
		err := l.each(ctx, func(e *outbox.Event) (bool, error) {
			var text bytes.Buffer
			if shown > 0 {
				text.WriteByte(',')
			}
			text.WriteString("\n  ")
			enc := json.NewEncoder(&text)
			enc.SetEscapeHTML(false)
			enc.SetIndent("  ", "  ")
			if err := enc.Encode(admin.NewDeadLetter(e, a.redact)); err != nil {
				return false, err
			}
			shown++
			_, err := a.stdout.Write(bytes.TrimRight(text.Bytes(), "\n"))
			return shown != limit, err
		})
		if err != nil {
			a.fail(err)
		}
		if limit > 0 && shown == limit {
			break
		}
	}
	end := "]\n"
	if shown > 0 {
		end = "\n]\n"
	}
	_, err := io.WriteString(a.stdout, end)
	return err
}

// listTable prints a line each.
func (a *app) listTable(ctx context.Context, all []letters, f *deadFlags) error {
	head := []string{"PIPELINE", "ID", "TOPIC", "KEY", "ATTEMPTS", "DIED", "TOLD"}
	if f.closed {
		head = append(head, "CLOSED")
	}
	rows := [][]string{append(head, "ERROR")}
	var matching int64
	for _, l := range all {
		n, err := l.count(ctx)
		if err == nil {
			matching += n.Open
			if f.closed {
				matching += n.Closed
			}
			err = l.each(ctx, func(e *outbox.Event) (bool, error) {
				if f.limit > 0 && len(rows) > f.limit {
					return false, nil
				}
				rows = append(rows, a.row(l, e, f.closed))
				return true, nil
			})
		}
		if err != nil {
			a.fail(err)
		}
	}
	if _, err := io.WriteString(a.stdout, columns(rows, width(a))); err != nil {
		return err
	}
	if more := matching - int64(len(rows)-1); more > 0 && f.limit > 0 && len(rows) > f.limit {
		a.say(admin.Count(more) + " more; --limit 0 shows all")
	}
	return nil
}

func (a *app) row(l letters, e *outbox.Event, closed bool) []string {
	d := e.DeadLetter
	key := "-"
	if e.Key != nil {
		key = *e.Key
	}
	told := "-" // there is nobody to tell
	switch {
	case !d.NotifiedAt.IsZero():
		told = "yes"
	case l.Hooked():
		told = "no"
	}
	row := []string{d.Pipeline, e.Identity(), plain(e.Topic), plain(key), strconv.Itoa(d.Attempts), ago(d.DiedAt), told}
	if closed {
		row = append(row, ago(d.ClosedAt))
	}
	return append(row, plain(a.redact(d.Error)))
}

// ago is how long ago something was, by this machine's clock; "-" when it was not.
func ago(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return admin.Age(max(0, time.Since(at)))
}

// plain is one line of text without what a terminal would obey.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == utf8.RuneError {
			return '\uFFFD'
		}
		return r
	}, oneLine(text))
}

// width is how many characters go on a line, 0 where nobody looks.
func width(a *app) int {
	if !isTerminal(a.stdout) {
		return 0
	}
	n, _, err := term.GetSize(int(a.stdout.Fd()))
	if err != nil {
		return 0
	}
	return n
}

// columns lays rows out, each column as wide as it needs and the last cut to fit.
func columns(rows [][]string, most int) string {
	const widest = 40
	last := len(rows[0]) - 1
	widths := make([]int, last)
	for _, row := range rows {
		for i, cell := range row[:last] {
			widths[i] = min(max(widths[i], utf8.RuneCountInString(cell)), widest)
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row[:last] {
			fmt.Fprintf(&line, "%-*s  ", widths[i], cut(cell, widths[i]))
		}
		line.WriteString(row[last])
		text := strings.TrimRight(line.String(), " ")
		if most > 0 {
			text = cut(text, most)
		}
		b.WriteString(text + "\n")
	}
	return b.String()
}

func cut(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:max(0, most-1)]) + "…"
	}
	return text
}
