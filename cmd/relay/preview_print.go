package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/outboxrelay/relay/internal/config"
)

// printPreview shows what would be sent, for people; a body stands as it may be
// copied.
func (a *app) printPreview(p *config.Pipeline, shown previewed, again bool) error {
	var b strings.Builder
	paint := brush(a.stdout)
	if again {
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "%s: %s (%s) -> %s (%s)\n", p.Name, p.Source.URL, p.Source.Table, p.Sink.URL, address(&p.Sink))
	switch {
	case shown.events == 0 && shown.claimed.Pending > 0:
		b.WriteString(a.redact(claimedWords(p, &shown)))
	case shown.events == 0:
		b.WriteString("no event waits. Insert one, and look again:\n\n" + example(p) + "\n")
	case shown.projectErr != nil:
		fmt.Fprintf(&b, "\n%s\n%s\n\n", paint(yellow, "source.project fails, so nothing would be sent:"), plain(a.redact(shown.projectErr.Error())))
		b.WriteString("A batch that cannot be projected is halved until the event that does it stands\nalone. When every event does it, correct source.project.\n")
	default:
		a.printRequests(&b, paint, shown)
	}
	_, err := io.WriteString(a.stdout, b.String())
	return err
}

func (a *app) printRequests(b *strings.Builder, paint func(colour, string) string, shown previewed) {
	fmt.Fprintf(b, "%s looked at; nothing is claimed, nothing is sent.\n", many(shown.events, "event", "events"))
	for i, r := range shown.requests {
		fmt.Fprintf(b, "\n%s\n", paint(faint, fmt.Sprintf("request %d of %d: %s", i+1, len(shown.requests), eventsOf(r.events))))
		fmt.Fprintf(b, "%s\n", paint(bold, plain(a.redact(r.Summary))))
		for _, f := range r.Header {
			fmt.Fprintf(b, "%s %s\n", paint(cyan, plain(f.Name)+":"), plain(a.redact(f.Value)))
		}
		if r.Body != nil {
			fmt.Fprintf(b, "\n%s\n", strings.TrimRight(a.redact(payload(r.Body)), "\n"))
		}
	}
	if len(shown.buried) > 0 {
		fmt.Fprintf(b, "\n%s %s\nsource.project returns no row for %s: buried before the batch is sent, a dead\nletter with the reason \"not projected\".\n",
			paint(yellow, "not sent:"), eventsOf(shown.buried), itOrThem(len(shown.buried)))
	}
	for _, r := range shown.refused {
		fmt.Fprintf(b, "\n%s event %s\n%s\n", paint(yellow, "not sent:"), r.event, plain(a.redact(r.err.Error())))
	}
}

// claimedWords tells of events that are in batches, when there are no others.
func claimedWords(p *config.Pipeline, shown *previewed) string {
	s := &shown.claimed
	events, waiting := many(int(s.Pending), "event", "events"), many(int(s.Waiting), "batch", "batches")
	switch {
	case s.Waiting == 0:
		return fmt.Sprintf("no event is unclaimed: a relay has claimed %s, and sends them.\n", events)
	case s.Leased > 0:
		events += " are being sent, or"
	}
	why := ""
	if shown.why != "" {
		why = " (the last error: " + plain(shown.why) + ")"
	}
	return fmt.Sprintf("no event is unclaimed: %s wait in %s for a retry%s.\n\n"+
		"Mend what it names. A relay that runs sends them again by itself, at most %v\nafter its last try. Preview shows unclaimed events only.\n",
		events, waiting, why, p.Retry.Max)
}

// eventsOf names events: "event 17", "events 17, 18 and 998 more".
func eventsOf(ids []string) string {
	const named = 5
	if len(ids) == 1 {
		return "event " + ids[0]
	}
	if more := len(ids) - named; more > 0 {
		return fmt.Sprintf("events %s and %d more", strings.Join(ids[:named], ", "), more)
	}
	return "events " + strings.Join(ids, ", ")
}

func itOrThem(n int) string {
	if n == 1 {
		return "it"
	}
	return "them"
}

// example is how an event comes into the pipeline's table.
func example(p *config.Pipeline) string {
	if p.Source.Own.Is() {
		return "  INSERT INTO " + p.Source.Table + " ...; COMMIT;   -- and leave group_id NULL"
	}
	return "  INSERT INTO " + p.Source.Table + ` (topic, key, payload)
  VALUES ('orders.created', 'customer-7', '{"order": 1}');`
}

// colour is an escape sequence's number.
type colour string

const (
	bold   colour = "1"
	faint  colour = "2"
	yellow colour = "33"
	cyan   colour = "36"
)

// brush paints texts, on a terminal.
func brush(f *os.File) func(colour, string) string {
	if !isTerminal(f) || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return func(_ colour, text string) string { return text }
	}
	return func(c colour, text string) string { return "\x1b[" + string(c) + "m" + text + "\x1b[0m" }
}
