package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox"
)

func (a *app) deadShowCommand() *cobra.Command {
	var f deadFlags
	var c *cobra.Command
	c = a.configured(&cobra.Command{
		Use:     "show",
		Short:   "Show dead letters with all that is known of them",
		Example: "  relay dead show -c relay.yaml --id 17\n  relay dead show -c relay.yaml --pipeline orders --topic orders.created --json",
	}, func(_ *cobra.Command, cfg *config.Config) error {
		if err := f.chosen(); err != nil {
			return err
		}
		return a.withLetters(c, cfg, &f, func(ctx context.Context, all []letters) error {
			if f.asJSON {
				if err := a.listJSON(ctx, all, 0); err != nil {
					return err
				}
			}
			found := map[string]bool{}
			for _, l := range all {
				if err := l.each(ctx, func(e *outbox.Event) (bool, error) {
					found[e.Identity()] = true
					if f.asJSON {
						return true, nil
					}
					_, err := io.WriteString(a.stdout, a.portrait(e))
					return true, err
				}); err != nil {
					a.fail(err)
				}
			}
			for _, id := range named(all[0].filter) {
				if !found[id] {
					a.fail(fmt.Errorf("%s: there is no such dead letter%s", id, unlessClosed(f.closed)))
				}
			}
			return nil
		})
	})
	f.bind(c)
	c.Flags().BoolVar(&f.closed, "closed", false, "those that were replayed or discarded too")
	return c
}

func unlessClosed(closed bool) string {
	if closed {
		return ""
	}
	return " that is open (--closed looks at the others too)"
}

// portrait is everything that is known of a dead letter, for people.
func (a *app) portrait(e *outbox.Event) string {
	var b strings.Builder
	d := e.DeadLetter
	line := func(name, value string) { fmt.Fprintf(&b, "  %-9s %s\n", name, value) }
	fmt.Fprintf(&b, "%s %s\n", d.Pipeline, e.Identity())
	line("topic", plain(e.Topic))
	if e.Key != nil {
		line("key", plain(*e.Key))
	}
	if e.Headers != nil {
		line("headers", plain(string(e.Headers)))
	}
	line("created", moment(e.CreatedAt))
	line("died", moment(d.DiedAt))
	line("told", moment(d.NotifiedAt))
	line("closed", moment(d.ClosedAt))
	line("group_id", d.GroupID.String())
	line("attempts", fmt.Sprint(d.Attempts))
	line("error", plain(a.redact(d.Error)))
	block := func(name string, content []byte) {
		b.WriteString("  " + name + "\n")
		for row := range strings.Lines(payload(content)) {
			fmt.Fprintf(&b, "    %s\n", strings.TrimSuffix(row, "\n"))
		}
	}
	block("payload", e.Payload)
	if d.Row != nil {
		block("row, which replay puts back", d.Row)
	}
	b.WriteByte('\n')
	return b.String()
}

func moment(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return fmt.Sprintf("%s (%s ago)", at.UTC().Format(time.RFC3339Nano), ago(at))
}

// payload is JSON with its lines indented, text as it is, and bytes as a dump.
func payload(p []byte) string {
	var indented bytes.Buffer
	if utf8.Valid(p) && json.Indent(&indented, p, "", "  ") == nil {
		return indented.String()
	}
	readable := func(r rune) bool { return r == '\n' || !unicode.IsControl(r) && !unicode.Is(unicode.Cf, r) }
	if utf8.Valid(p) && strings.IndexFunc(string(p), func(r rune) bool { return !readable(r) }) < 0 {
		return string(p)
	}
	return hex.Dump(p)
}
