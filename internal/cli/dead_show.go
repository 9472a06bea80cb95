package cli

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
	"github.com/outboxrelay/relay/outbox/buffer"
)

func (a *app) deadShowCommand() *cobra.Command {
	var f deadFlags
	var c *cobra.Command
	c = a.withoutSinks(&cobra.Command{
		Use:     "show",
		Short:   "Show dead letters in full",
		Example: "  relay dead show -c relay.yaml --id 17\n  relay dead show -c relay.yaml --pipeline orders --topic orders.created --json",
	}, func(_ *cobra.Command, cfg *config.Config) error {
		if err := f.requireSelection(); err != nil {
			return err
		}
		return a.withDeadLetters(c, cfg, &f, func(ctx context.Context, all []deadLetters) error {
			if f.asJSON {
				if err := a.listJSON(ctx, all, 0); err != nil {
					return err
				}
			}
			found := map[string]bool{}
			for _, l := range all {
				if err := l.each(ctx, func(e *buffer.DeadEvent) (bool, error) {
					found[e.Identity()] = true
					if f.asJSON {
						return true, nil
					}
					_, err := io.WriteString(a.stdout, a.details(e))
					return true, err
				}); err != nil {
					a.fail(err)
				}
			}
			hint := ""
			if !f.closed {
				hint = " that is open; use --closed to include closed ones"
			}
			for _, id := range filterIDs(all[0].filter) {
				if !found[id] {
					a.fail(fmt.Errorf("%s: no dead letter has this id%s", id, hint))
				}
			}
			return nil
		})
	})
	f.bind(c)
	f.bindClosed(c)
	return c
}

// details formats a dead letter in full.
func (a *app) details(d *buffer.DeadEvent) string {
	var b strings.Builder
	line := func(name, value string) { fmt.Fprintf(&b, "  %-9s %s\n", name, value) }
	fmt.Fprintf(&b, "%s %s\n", d.Pipeline, d.Identity())
	if d.Sink != "" {
		line("sink", printable(d.Sink))
	}
	line("topic", printable(d.Topic))
	if d.Key != nil {
		line("key", printable(*d.Key))
	}
	if d.Headers != nil {
		line("headers", printable(string(d.Headers)))
	}
	line("created", timeAndAge(d.CreatedAt))
	line("died", timeAndAge(d.DiedAt))
	line("notified", timeAndAge(d.NotifiedAt))
	line("closed", strings.TrimSpace(d.ClosedAs+" "+timeAndAge(d.ClosedAt)+closedBy(d)))
	if d.ClosedReason != "" {
		line("reason", printable(d.ClosedReason))
	}
	line("group_id", d.GroupID.String())
	line("attempts", fmt.Sprint(d.Attempts))
	line("error", printable(a.redact(d.Error)))
	if len(d.History) > 0 {
		b.WriteString("  history\n")
	}
	for _, tried := range d.History {
		if tried.Omitted > 0 {
			fmt.Fprintf(&b, "    %d more attempts\n", tried.Omitted)
		}
		events := "1 event"
		if tried.Events != 1 {
			events = fmt.Sprintf("%d events", tried.Events)
		}
		fmt.Fprintf(&b, "    %s by %s, batch %s of %s\n      %s\n", timeAndAge(tried.At), printable(tried.Relay), tried.GroupID, events, printable(oneLine(a.redact(tried.Error))))
	}
	block := func(name string, content []byte) {
		b.WriteString("  " + name + "\n")
		for row := range strings.Lines(payload(content)) {
			fmt.Fprintf(&b, "    %s\n", strings.TrimSuffix(row, "\n"))
		}
	}
	block("payload", d.Payload)
	if d.Row != nil {
		block("row (inserted by replay)", d.Row)
	}
	b.WriteByte('\n')
	return b.String()
}

func timeAndAge(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return fmt.Sprintf("%s (%s ago)", at.UTC().Format(time.RFC3339Nano), ago(at))
}

// payload formats JSON with indentation, other text as it is and bytes as a hex dump.
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
