package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// A sink that was taken out of the configuration: nobody is told that its batches are due. A relay that runs may still have it, as in a rollout.
func TestUnserved(t *testing.T) {
	t.Parallel()
	status := func(relays ...buffer.Relay) buffer.Status {
		return buffer.Status{Relays: relays, Sinks: []buffer.SinkStatus{
			{Name: "crm", Pending: 3, Waiting: 1, Due: 1, Waits: []buffer.Wait{{Error: "503", Batches: 1, Events: 3}}},
			{Name: "search", Pending: 3, Waiting: 1, Due: 1, Waits: []buffer.Wait{{Error: "503", Batches: 1, Events: 3}}},
		}}
	}
	report := func(s buffer.Status) PipelineReport {
		return NewPipelineReport("shop", 10, []string{"crm"}, func(string) bool { return false }, s, func(text string) string { return text })
	}
	got := report(status(buffer.Relay{Sink: "crm"}))
	if len(got.Sinks[0].Waits) != 1 || got.Sinks[1].Waits != nil {
		t.Errorf("the waits are %+v and %+v", got.Sinks[0].Waits, got.Sinks[1].Waits)
	}
	if len(got.SinkProblems) != 1 || !strings.HasPrefix(got.SinkProblems[0], "sink search: is not in the configuration") || !strings.Contains(got.SinkProblems[0], "relay sinks drop search") {
		t.Errorf("the problems are %q", got.SinkProblems)
	}
	got = report(status(buffer.Relay{Sink: "crm"}, buffer.Relay{Sink: "search"}))
	if len(got.Sinks[1].Waits) != 1 || got.SinkProblems != nil {
		t.Errorf("while a relay has it: %+v, %q", got.Sinks[1].Waits, got.SinkProblems)
	}
	known := status(buffer.Relay{Sink: "search", RelayReport: buffer.RelayReport{Stopped: true}, Seen: time.Hour})
	known.SinkFindings = []buffer.Finding{{Subject: "sink search", Text: "no relay has served it"}}
	if got = report(known); len(got.SinkProblems) != 1 || !strings.Contains(got.SinkProblems[0], "no relay has served it") {
		t.Errorf("with a finding: %q", got.SinkProblems)
	}
}
