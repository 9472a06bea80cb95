package admin

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// A pause is the state of what it stops, and no other's.
func TestPauses(t *testing.T) {
	t.Parallel()
	plain := func(text string) string { return text }
	none := func(string) bool { return false }
	pause := buffer.Pause{For: 90 * time.Minute, By: "alice@host", Reason: "it moves"}
	single := NewPipelineReport("orders", 10, nil, none, buffer.Status{Pauses: []buffer.Pause{pause}}, plain)
	if single.State != "paused 1h" {
		t.Errorf("the state is %q", single.State)
	}
	if got, want := single.Pauses[0].Text("orders"), "paused for 1h by alice@host: it moves. > relay resume --pipeline orders -c relay.yaml"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	states := func(pauses ...buffer.Pause) map[string]string {
		status := buffer.Status{Pauses: pauses, Sinks: []buffer.SinkStatus{{Name: "crm"}, {Name: "log"}, {Name: "old", Dropped: true}, {Name: buffer.Unrouted, Pending: 1}}}
		got := map[string]string{}
		for _, s := range NewPipelineReport("orders", 10, []string{"crm", "log"}, none, status, plain).Sinks {
			got[s.Name] = s.State
		}
		return got
	}
	ofSink := buffer.Pause{Sink: "crm", For: time.Minute}
	if diff := cmp.Diff(map[string]string{"crm": "paused 1m", "log": noRelay, "old": "dropped", "*": "not routed yet"}, states(ofSink)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"crm": "paused 1h", "log": "paused 1h", "old": "dropped", "*": "not routed yet"}, states(pause, ofSink)); diff != "" {
		t.Error(diff)
	}
	if got, want := (&PauseReport{Sink: "crm", Seconds: 60}).Text("orders"), "sink crm is paused for 1m. > relay resume crm --pipeline orders -c relay.yaml"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
