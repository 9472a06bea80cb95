package buffertest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var relayCases = []testCase{
	{name: "relays/a report replaces the last one of the process", run: relaysReplace},
	{name: "relays/a process that stops does not run", run: relaysStop},
	{name: "relays/wrong answers outlast the process for an hour", run: relaysAnswers},
	{name: "relays/a silent process does not run, and is forgotten after a day", run: relaysSilent},
}

func report(t *testing.T, b buffer.Buffer, r buffer.RelayReport) {
	t.Helper()
	to, is := b.(buffer.RelayReporter)
	if !is {
		t.Fatalf("%T is no buffer.RelayReporter", b)
	}
	ok(t, "ReportRelay", to.ReportRelay(t.Context(), r))
}

// relays returns the relays in the status, without the times.
func relays(t *testing.T, b buffer.Buffer) []buffer.Relay {
	t.Helper()
	status, err := b.Status(t.Context())
	ok(t, "Status", err)
	for i := range status.Relays {
		r := &status.Relays[i]
		if r.Seen < 0 || r.Seen > time.Minute || r.Uptime < 0 {
			t.Errorf("%+v was seen %v ago and ran for %v", r, r.Seen, r.Uptime)
		}
		r.Owner, r.Seen, r.Uptime = "", 0, 0
	}
	return status.Relays
}

func relaysReplace(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	if got := relays(t, f.Buffer); got != nil {
		t.Errorf("relays before a report: %v", got)
	}
	report(t, f.Buffer, buffer.RelayReport{First: true, Version: "v1", LastDelivery: -1})
	if got := relays(t, f.Buffer); len(got) != 1 || got[0].Version != "v1" || got[0].LastDelivery >= 0 {
		t.Errorf("relays after the first report: %v; want one of v1 without a delivery", got)
	}
	report(t, f.Buffer, buffer.RelayReport{Version: "v2", NotReady: "sink: away", NotReadyClass: "sink", NotReadyKind: buffer.KindFull, NotReadyFor: time.Hour, Notice: "slow\nodd", Answers: "pages\nfailures", Probes: true, Delivered: 1 << 40, Dead: 3, LastMinute: 5, LastDelivery: time.Hour, Latencies: buffer.Latencies{3: 7, 19: 1 << 40}})
	got := relays(t, f.Buffer)
	if len(got) != 1 {
		t.Fatalf("relays after the second report: %v", got)
	}
	if ago := got[0].LastDelivery; ago < time.Hour-clockStep || ago > time.Hour+time.Minute {
		t.Errorf("the last delivery was %v ago, want 1h", ago)
	}
	if ago := got[0].NotReadyFor; ago < time.Hour-clockStep || ago > time.Hour+time.Minute {
		t.Errorf("it has not been ready for %v, want 1h", ago)
	}
	got[0].LastDelivery, got[0].NotReadyFor = 0, 0
	if diff := cmp.Diff(buffer.Relay{RelayReport: buffer.RelayReport{Version: "v2", NotReady: "sink: away", NotReadyClass: "sink", NotReadyKind: buffer.KindFull, Notice: "slow\nodd", Answers: "pages\nfailures", Probes: true, Delivered: 1 << 40, Dead: 3, LastMinute: 5, Latencies: buffer.Latencies{3: 7, 19: 1 << 40}}}, got[0]); diff != "" {
		t.Error(diff)
	}
}

func relaysStop(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	report(t, f.Buffer, buffer.RelayReport{First: true, LastDelivery: -1})
	if got := relays(t, f.Buffer); len(got) != 1 || !got[0].Runs() {
		t.Errorf("relays while it runs: %v", got)
	}
	report(t, f.Buffer, buffer.RelayReport{Stopped: true, LastDelivery: 0})
	if got := relays(t, f.Buffer); len(got) != 1 || got[0].Runs() || got[0].LastDelivery < 0 {
		t.Errorf("relays after it stopped: %v", got)
	}
	report(t, f.Buffer, buffer.RelayReport{First: true, LastDelivery: -1})
	if got := relays(t, f.Buffer); len(got) != 1 || !got[0].Runs() {
		t.Errorf("relays after it started again: %v", got)
	}
}

// relaysAnswers: what a sink answered to events that are gone is read for an hour after it changed last, also if the process ended, or another one took its name.
func relaysAnswers(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	answers := func(want string) {
		t.Helper()
		got := relays(t, f.Buffer)
		if len(got) != 1 {
			t.Fatalf("relays: %v; want one", got)
		}
		equal(t, "Answers", got[0].Answers, want)
	}
	since := func(ago time.Duration) {
		f.Exec(t, fmt.Sprintf("UPDATE outbox_relays SET answered_at = '%s'", time.Now().UTC().Add(-ago).Format("2006-01-02T15:04:05.000Z")))
	}
	report(t, f.Buffer, buffer.RelayReport{First: true, LastDelivery: -1})
	answers("")
	report(t, f.Buffer, buffer.RelayReport{Answers: "a page", LastDelivery: -1})
	answers("a page")
	report(t, f.Buffer, buffer.RelayReport{Answers: "two pages", LastDelivery: -1})
	answers("two pages")
	report(t, f.Buffer, buffer.RelayReport{Answers: "two pages", Stopped: true, LastDelivery: -1})
	answers("two pages")
	report(t, f.Buffer, buffer.RelayReport{First: true, LastDelivery: -1}) // a container has the same host and pid again
	answers("two pages")
	report(t, f.Buffer, buffer.RelayReport{Answers: "an error", LastDelivery: -1})
	answers("two pages\nan error")
	since(59 * time.Minute)
	report(t, f.Buffer, buffer.RelayReport{Answers: "an error", LastDelivery: -1}) // it has not changed
	answers("two pages\nan error")
	since(61 * time.Minute)
	answers("")
	report(t, f.Buffer, buffer.RelayReport{First: true, LastDelivery: -1})
	report(t, f.Buffer, buffer.RelayReport{Answers: "another page", LastDelivery: -1})
	answers("another page")
}

func relaysSilent(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	for i, silent := range []time.Duration{5 * time.Second, 30 * time.Second, 25 * time.Hour} {
		report(t, f.Second(t), buffer.RelayReport{LastDelivery: -1})
		f.Exec(t, fmt.Sprintf("UPDATE outbox_relays SET owner = 'silent/%d', seen_at = '%s' WHERE owner NOT LIKE 'silent/%%'", i,
			time.Now().UTC().Add(-silent).Format("2006-01-02T15:04:05.000Z")))
	}
	status, err := f.Buffer.Status(t.Context())
	ok(t, "Status", err)
	var running []string
	for _, r := range status.Relays {
		if r.Runs() {
			running = append(running, r.Owner)
		}
	}
	if want := []string{"silent/0"}; !slices.Equal(running, want) {
		t.Errorf("running relays are %q, want %q", running, want)
	}
	report(t, f.Buffer, buffer.RelayReport{First: true, LastDelivery: -1})
	status, err = f.Buffer.Status(t.Context())
	ok(t, "Status", err)
	if len(status.Relays) != 3 {
		t.Errorf("relays are %v; want 3, without the one of yesterday", status.Relays)
	}
}
