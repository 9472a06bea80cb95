package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/preview"
	"github.com/outboxrelay/relay/internal/scaffold"
)

// printPreview writes a preview for people. Bodies can be copied as they are.
func (a *app) printPreview(p *config.Pipeline, result preview.Result, again bool) error {
	var b strings.Builder
	paint := painter(a.stdout)
	if again {
		b.WriteByte('\n')
	}
	b.WriteString(p.Route() + "\n")
	switch {
	case result.Events == 0 && result.Claimed.Pending > 0:
		b.WriteString(a.redact(describeClaimed(p, &result)))
	case result.Elsewhere:
		b.WriteString("All events are claimed, and none waits for this sink.\n")
	case result.Events == 0:
		b.WriteString(describeEmpty(p, &result))
	case result.ProjectErr != nil:
		fmt.Fprintf(&b, "\n%s\n%s\n\n", paint(yellow, "source.project fails for "+eventsOf(result.ProjectFails)+", so nothing would be sent:"), printable(a.redact(result.ProjectErr.Error())))
		b.WriteString("A batch that cannot be projected is halved until the failing event is alone. If all\nevents fail, correct source.project.\n")
	default:
		a.printRequests(&b, paint, p, result)
	}
	_, err := io.WriteString(a.stdout, b.String())
	return err
}

func (a *app) printRequests(b *strings.Builder, paint func(colour, string) string, p *config.Pipeline, result preview.Result) {
	others := ""
	if n := len(result.Others); n == result.Events {
		others = ", none for this sink"
	} else if n > 0 {
		others = fmt.Sprintf(", %d for this sink", result.Events-n)
	}
	fmt.Fprintf(b, "%s read%s; nothing was claimed or sent.\n", plural(int64(result.Events), "event", "events"), others)
	for i, r := range result.Requests {
		fmt.Fprintf(b, "\n%s\n", paint(faint, fmt.Sprintf("request %d of %d: %s", i+1, len(result.Requests), eventsOf(r.IDs))))
		fmt.Fprintf(b, "%s\n", paint(bold, printable(a.redact(r.Summary))))
		for _, f := range r.Header {
			fmt.Fprintf(b, "%s %s\n", paint(cyan, printable(f.Name)+":"), printable(a.redact(f.Value)))
		}
		if r.Body != nil {
			fmt.Fprintf(b, "\n%s\n", strings.TrimRight(a.redact(payload(r.Body)), "\n"))
		}
		if r.UnsentIDs != nil {
			fmt.Fprintf(b, "\n%s the request is the same without %s\n%s\n", paint(yellow, "warning:"), eventsOf(r.UnsentIDs),
				"The request program leaves out what counts as delivered with the others. Send all events, or add a comment: # not sent: events")
		}
	}
	if n := len(result.Unprojected); n > 0 {
		pronoun := "They become dead letters"
		if n == 1 {
			pronoun = "It becomes a dead letter"
		}
		fmt.Fprintf(b, "\n%s %s\nsource.project returns no row. %s: \"not projected\".\n", paint(yellow, "not sent:"), eventsOf(result.Unprojected), pronoun)
	}
	if result.UnsentColumns != nil {
		why := "source.project does not mention them."
		if !p.Source.Custom.Is() {
			why = "They are no columns of the relay's own table; relay doctor says what to do."
		}
		fmt.Fprintf(b, "\n%s %s of table %s, whose rows are deleted after delivery\n%s\n", paint(yellow, "not sent:"), printable(strings.Join(result.UnsentColumns, ", ")), p.Source.Table, why)
	}
	if result.IgnoredColumns != nil {
		names := make([]string, len(result.IgnoredColumns))
		for i, c := range result.IgnoredColumns {
			names[i] = c.String()
		}
		fmt.Fprintf(b, "\n%s unknown columns of source.project: %s\nPut them into payload or headers, or remove them; relay doctor says more.\n", paint(yellow, "not sent:"), printable(strings.Join(names, ", ")))
	}
	if result.WithoutHeaders != nil {
		fmt.Fprintf(b, "\n%s the headers of %s\nThe request program ignores them: %s\n", paint(yellow, "not sent:"), eventsOf(result.WithoutHeaders), config.AddHeaders)
	}
	b.WriteString(describeUnknownMembers(&p.Sink, paint))
	if text, fix := p.UnsentOfBatch(); text != "" {
		fmt.Fprintf(b, "\n%s the request program %s\n%s\n", paint(yellow, "warning:"), text, fix)
	}
	for _, r := range result.Rejected {
		fmt.Fprintf(b, "\n%s event %s\n%s\n", paint(yellow, "not sent:"), r.Event, printable(a.redact(r.Err.Error())))
	}
}

// describeUnknownMembers names what the programs of a sink read although it is always null.
func describeUnknownMembers(s *config.Sink, paint func(c colour, text string) string) string {
	var text strings.Builder
	for _, m := range s.UnknownMembers() {
		fmt.Fprintf(&text, "\n%s the %s program reads %s\n%s\n", paint(yellow, "warning:"), m.Program, m.Text, m.Fix)
	}
	return text.String()
}

// describeEmpty describes a buffer without a pending event: rows may be delayed, or excluded by source.where.
func describeEmpty(p *config.Pipeline, result *preview.Result) string {
	var (
		text  string
		s     = &result.Claimed
		where = printable(strings.Join(strings.Fields(p.Source.Custom.Where), " "))
	)
	if s.Delayed > 0 {
		text = fmt.Sprintf("No event is due yet. Delayed: %s, the next until %s.\n", admin.Pending(s.Delayed), time.Now().Add(s.NextDelayed).UTC().Format(time.RFC3339))
	}
	switch n := result.Excluded; {
	case n > preview.MaxExcluded:
		text += fmt.Sprintf("Table %s has more than %s that source.where excludes: %s\n", p.Source.Table, plural(preview.MaxExcluded, "row", "rows"), where)
	case n > 0:
		text += fmt.Sprintf("Table %s has %s that source.where excludes: %s\n", p.Source.Table, plural(int64(n), "row", "rows"), where)
	}
	insert := example(p)
	if text == "" {
		return "The buffer has no events. Insert one and run preview again:\n\n" + insert + "\n"
	}
	if result.Excluded > 0 {
		insert = "  INSERT INTO " + scaffold.TableName(p.Source.Table) + " ...; COMMIT;   -- with group_id NULL, and " + where
	}
	return text + "To preview an event, insert one and run preview again:\n\n" + insert + "\n"
}

// describeClaimed describes a buffer whose events are all claimed.
func describeClaimed(p *config.Pipeline, result *preview.Result) string {
	s := &result.Claimed
	events, waiting := plural(s.Pending, "event", "events"), plural(s.Waiting, "batch", "batches")
	are, wait := " are", " wait"
	if s.Pending == 1 {
		are, wait = " is", " waits"
	}
	switch {
	case s.Waiting == 0:
		return fmt.Sprintf("All events are claimed: a relay is sending %s.\n", events)
	case s.Leased > 0:
		events += are + " being sent, or"
	}
	why := ""
	if result.Why != "" {
		why = printable(result.Why) + "\n\n"
	}
	return fmt.Sprintf("All events are claimed: %s in %s for a retry.\n\n%s"+
		"Fix the cause. A running relay retries within %v. Preview shows unclaimed events only.\n"+
		"To see the request of an event that waits, write its envelope to a file, as docs/troubleshooting.md#the-request-of-a-waiting-batch\n"+
		"says, and run: relay preview -c relay.yaml --events-file FILE\n",
		events+wait, waiting, why, p.Retry.Max)
}

// eventsOf lists events: "event 17", "events 17, 18 and 998 more".
func eventsOf(ids []string) string {
	const listed = 5
	if len(ids) == 1 {
		return "event " + ids[0]
	}
	if more := len(ids) - listed; more > 0 {
		return fmt.Sprintf("events %s and %d more", strings.Join(ids[:listed], ", "), more)
	}
	return "events " + strings.Join(ids, ", ")
}

// example is a statement that inserts an event.
func example(p *config.Pipeline) string {
	if p.Source.Custom.Is() {
		return "  INSERT INTO " + scaffold.TableName(p.Source.Table) + " ...; COMMIT;   -- with group_id NULL"
	}
	return "  INSERT INTO " + scaffold.TableName(p.Source.Table) + ` (topic, key, payload)
  VALUES ('orders.created', 'customer-7', '{"order": 1}');`
}
