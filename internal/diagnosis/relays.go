package diagnosis

import (
	"context"
	"fmt"
	"strings"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// relays adds what the running relays say of themselves. A sink that can be reached may still refuse everything, which only
// those know who send to it. local is [Options.LocalRelay].
func relays(ctx context.Context, p *config.Pipeline, status *buffer.Status, local func(context.Context, string) string) (findings []buffer.Finding) {
	const about = "relays"
	notReady, running := admin.NotReady(status.Relays, p.SinkNames(), func(r *buffer.Relay) string { return r.NotReady })
	for i := range notReady {
		n := &notReady[i]
		bad, itIs := "", "it is"
		if len(n.Relays) > 1 {
			itIs = "they are"
		}
		if n.Relays[0].NotReadyClass == buffer.NotReadyRefusing {
			bad = "; if the sink accepts other events, these are bad: to remove many, pause the pipeline and move them into a table of your own (docs/troubleshooting.md#to-remove-a-burst-of-bad-events)"
		}
		fix := "remove this cause, then relay retry --now -c relay.yaml sends at once"
		if i == 0 { // not again for each relay and sink
			fix += "; relay preview -c relay.yaml shows the requests of unclaimed events, and with --events-file FILE those of events that wait (docs/troubleshooting.md#the-request-of-a-waiting-batch)"
		}
		findings = append(findings, buffer.Finding{
			Level: buffer.LevelError, Subject: about,
			Text: fmt.Sprintf("%s reported %s ago that %s not ready: %s", n.Name(), admin.Age(n.Seen()), itIs, n.Reason),
			Fix:  fix + bad,
		})
	}
	for _, n := range admin.Notices(status.Relays, p.SinkNames()) {
		findings = append(findings, buffer.Finding{Level: buffer.LevelWarning, Subject: about, Text: n.String()})
	}
	report := admin.NewPipelineReport(p.Name, p.MaxWaiting, p.SinkNames(), notifies(p), *status, func(text string) string { return text })
	for i := range report.Pauses {
		text, fix, _ := strings.Cut(report.Pauses[i].Text(p.Name), ". > ")
		findings = append(findings, buffer.Finding{Level: buffer.LevelWarning, Subject: about, Text: text, Fix: fix})
	}
	hook := report.Hook
	if hook != nil && hook.Unnotified > 0 && len(hook.Waits) > 0 {
		findings = append(findings, buffer.Finding{
			Level: buffer.LevelError, Subject: "dead_letter.hook",
			Text: fmt.Sprintf("it takes nothing: %s it was not notified of; %s", deadLetters(hook.Unnotified), hook.Waits[0].Text()),
			Fix:  "correct dead_letter.hook, or what answers there; the dead letters are kept, and it is notified again until it accepts them",
		})
	}
	gone := admin.Gone(status.Relays)
	if len(gone) > 0 {
		ended, its := "it", "its"
		if len(gone) > 1 {
			ended, its = "they", "their"
		}
		findings = append(findings, buffer.Finding{
			Level: buffer.LevelWarning, Subject: about, Text: admin.GoneText(gone, status.Relays),
			Fix: "find out why " + ended + " ended: " + its + " log, memory limits, a crash of the host. " + map[bool]string{true: "The next relay takes", false: "Other relays take"}[running == 0] +
				" " + its + " batches over when their leases end",
			About: fmt.Sprint("ended ", running == 0, admin.GoneNames(gone)), // the ages in the text differ
		})
	}
	findings = append(findings, admin.Unserved(status, p.SinkNames())...)
	says := ""
	if running == 0 && local != nil {
		says = local(ctx, p.Name)
	}
	switch {
	case says != "":
		text, fix, _ := strings.Cut(says, ". > ")
		findings = append(findings, buffer.Finding{Level: buffer.LevelError, Subject: about, Text: text, Fix: fix})
	case running == 0 && len(gone) > 0 && status.Pending > 0: // nobody stopped them
		findings = append(findings, buffer.Finding{Level: buffer.LevelError, Subject: about, Text: "none runs, and events wait", Fix: "relay run -c relay.yaml"})
	case running == 0:
		findings = append(findings, buffer.Finding{Subject: about, Text: "none runs"})
	case notReady == nil:
		findings = append(findings, buffer.Finding{Subject: about, Text: "all that run are ready"})
	}
	return findings
}

// notifies reports whether the dead letters of a sink have a hook; see [admin.DeadLetters.Notifies].
func notifies(p *config.Pipeline) func(sink string) bool {
	return (&admin.DeadLetters{HasHook: p.DeadLetter.Hook != nil, SinkHooks: p.SinkHooks()}).Notifies
}

func deadLetters(n int64) string {
	if n == 1 {
		return "1 dead letter"
	}
	return admin.Count(n) + " dead letters"
}
