package admin

import (
	"encoding/json"
	"math"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// shop is a pipeline with two sinks, one of which is not ready. A third one is not configured.
func shop(change ...func(*state)) Pipeline {
	s := &state{name: "shop", status: buffer.Status{
		Pending: 1300, OldestPending: time.Hour, Leased: 1, Waiting: 22, Delivered: 1, Dead: 2, Unnotified: 2,
		Sinks: []buffer.SinkStatus{
			{Name: "stream", Pending: 4, OldestPending: 2 * time.Second, Leased: 1},
			{
				Name: "crm", Pending: 1200, OldestPending: time.Hour, Waiting: 21, Delivered: 1, Next: 2 * time.Minute, Dead: 1, Unnotified: 1, Suspects: 1, OldestSuspect: time.Minute,
				Waits: []buffer.Wait{{Error: "503 with s3cret", Batches: 20, Events: 1150, First: 2 * time.Minute, Last: 4 * time.Minute, Early: true}},
			},
			{Name: "old", Pending: 50, OldestPending: 30 * time.Minute, Waiting: 1, Due: 1},
			{Name: buffer.Unrouted, Pending: 96, OldestPending: time.Second, Dead: 1, Unnotified: 1},
		},
		Relays: []buffer.Relay{
			{Owner: "web/1/shop", Sink: "stream", RelayReport: buffer.RelayReport{Version: "v1", Delivered: 900, LastMinute: 60, LastDelivery: 2 * time.Second}},
			{Owner: "web/1/shop", Sink: "crm", RelayReport: buffer.RelayReport{Probes: true, Version: "v1", LastDelivery: -1, NotReady: "sink: 503 with s3cret", NotReadyClass: "sink", NotReadyFor: 200 * time.Second}},
		},
	}}
	for _, c := range change {
		c(s)
	}
	p := s.pipeline()
	p.SinkHooks = []string{"crm"}
	p.Router = &state{}
	p.Sinks = []Sink{{Name: "stream", Health: &state{}}, {Name: "crm", Health: &state{ready: unready{errUnreachable}}}}
	return p
}

// TestMetrics_Sinks: the metrics of a pipeline with several sinks have the label sink, from the start and while the database is away; those
// of one with a single sink do not have it.
func TestMetrics_Sinks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		away bool
	}{{"known", false}, {"unknown", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := NewMetrics("1.2.3")
			for _, sink := range []string{"stream", "crm"} {
				m.Observer("shop", sink).Settled(batch(3, time.Second), []buffer.Outcome{{}}, true, time.Millisecond)
			}
			m.Observer("orders", "")
			s := New([]Pipeline{shop(func(s *state) {
				s.status.Pauses = []buffer.Pause{{Sink: "crm"}}
				if c.away {
					s.status, s.err = buffer.Status{}, errUnreachable
				}
			}), two()[0]}, m, Config{})
			got := map[string]float64{}
			for name, value := range scrape(t, s) {
				if strings.Contains(name, "pipeline=shop") {
					got[name] = value
				} else if strings.Contains(name, "sink=") {
					t.Errorf("%s has a label sink", name)
				}
			}
			known := func(v float64) float64 {
				if c.away {
					return math.NaN()
				}
				return v
			}
			want := map[string]float64{
				"relay_source_up{pipeline=shop}": 1, "relay_source_oldest_transaction_seconds{pipeline=shop}": known(0),
				"relay_source_table_locked{pipeline=shop}": known(0),
				"relay_events_delayed{pipeline=shop}":      known(0),
				"relay_ready{pipeline=shop,sink=stream}":   1, "relay_ready{pipeline=shop,sink=crm}": 0, "relay_ready{pipeline=shop,sink=*}": 1,
			}
			if c.away {
				want["relay_source_up{pipeline=shop}"] = 0
			}
			for _, class := range []string{"database", "sink", "stalled", "refusing"} {
				for _, sink := range []string{"stream", "crm", "*"} {
					want["relay_not_ready{class="+class+",pipeline=shop,sink="+sink+"}"] = 0
				}
			}
			want["relay_not_ready{class=database,pipeline=shop,sink=crm}"] = 1
			for _, kind := range []string{"transaction", "prepared", "slot"} {
				want["relay_source_xmin_horizon_seconds{kind="+kind+",pipeline=shop}"] = 0
			}
			for sink, v := range map[string]struct{ pending, oldest, leased, waiting, delivered, suspects, suspect, dead, unnotified float64 }{
				"stream": {4, 2, 1, 0, 0, 0, 0, 0, 0}, "crm": {1200, 3600, 0, 21, 1, 1, 60, 1, 1}, "old": {50, 1800, 0, 1, 0, 0, 0, 0, 0}, "*": {96, 1, 0, 0, 0, 0, 0, 1, 0}, // it has no hook
			} {
				labels := "pipeline=shop,sink=" + sink
				configured := sink == "stream" || sink == "crm"
				if configured || sink == "*" || !c.away {
					want["relay_events_pending{"+labels+"}"] = known(v.pending)
					want["relay_oldest_pending_seconds{"+labels+"}"] = known(v.oldest)
					want["relay_batches{"+labels+",state=leased}"] = known(v.leased)
					want["relay_batches{"+labels+",state=waiting}"] = known(v.waiting)
					want["relay_batches{"+labels+",state=delivered}"] = known(v.delivered)
					want["relay_suspect_batches{"+labels+"}"] = known(v.suspects)
					want["relay_oldest_suspect_seconds{"+labels+"}"] = known(v.suspect)
					want["relay_dead_letters{"+labels+"}"] = known(v.dead)
					want["relay_dead_letters_unnotified{"+labels+"}"] = known(v.unnotified)
				}
				if !configured {
					continue
				}
				want["relay_dead_letter_hook{"+labels+"}"] = 0
				want["relay_paused{"+labels+"}"] = known(0)
				if sink == "crm" { // which has a hook
					want["relay_dead_letter_hook{"+labels+"}"] = 1
					want["relay_paused{"+labels+"}"] = known(1)
				}
				want["relay_batch_size{"+labels+"}"], want["relay_workers{"+labels+"}"] = 1000, 4
				for name, value := range map[string]float64{
					"relay_events_delivered_total": 3, "relay_events_dead_total": 0, "relay_claim_seconds": 0, "relay_send_seconds": 0,
					"relay_settle_seconds": 1, "relay_delivery_latency_seconds": 3,
				} {
					want[name+"{"+labels+"}"] = value
				}
				for outcome, value := range map[string]float64{"delivered": 1, "retry": 0, "split": 0, "buried": 0} {
					want["relay_batches_total{outcome="+outcome+","+labels+"}"] = value
				}
			}
			if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestStatus_Sinks: the status, the page and readiness show each sink.
func TestStatus_Sinks(t *testing.T) {
	t.Parallel()
	redact := func(text string) string { return strings.ReplaceAll(text, "s3cret", "***") }
	s := New([]Pipeline{shop(func(s *state) { s.ready = unready{errUnreachable} }), two()[0]}, NewMetrics("1.2.3"), Config{Redact: redact})
	var status Report
	decode(t, get(t, s, "/api/status"), &status)
	next := func(seconds float64) *float64 { return &seconds }
	want := []SinkReport{
		{Name: "stream", State: "sending", Pending: 4, OldestPendingSeconds: next(2), Batches: Batches{Leased: 1}, Deliveries: Deliveries{LastMinute: 60, SecondsAgo: next(2)}},
		{
			Name: "crm", State: "sink down 3m", Pending: 1200, OldestPendingSeconds: next(3600), Batches: Batches{Waiting: 21, Delivered: 1}, Dead: 1, NextTryInSeconds: next(120),
			Waits: []WaitReport{{Error: "503 with ***", Batches: 20, Events: 1150, DueInSeconds: 120, LastDueInSeconds: 240, Early: true}},
		},
		{Name: "old", State: "not in the configuration", Pending: 50, OldestPendingSeconds: next(1800), Batches: Batches{Waiting: 1}, NextTryInSeconds: next(0)},
		{Name: "*", State: "not routed yet", Pending: 96, OldestPendingSeconds: next(1), Dead: 1},
	}
	if diff := cmp.Diff(want, status.Pipelines[0].Sinks); diff != "" {
		t.Error(diff)
	}
	wantRelays := []RelayReport{{Owner: "web/1/shop", Sink: "stream", Version: "v1", Running: true, Delivered: 900}, {Owner: "web/1/shop", Sink: "crm", Version: "v1", Running: true, NotReady: "sink: 503 with ***", NotReadyClass: "sink", NotReadySeconds: 200}}
	if diff := cmp.Diff(wantRelays, status.Pipelines[0].Relays); diff != "" {
		t.Error(diff)
	}
	problems := []string{"relay web/1, sink crm has not been ready for 3m 20s: the sink is unavailable"} // its batches say why
	if diff := cmp.Diff(problems, status.Pipelines[0].RelayProblems); diff != "" {
		t.Error(diff)
	}
	if status.Pipelines[1].Sinks != nil || status.Pipelines[0].Pending != 1300 {
		t.Errorf("pipelines: %+v", status.Pipelines)
	}
	type readiness struct {
		Name  string
		Ready bool
		Class string
		Sinks []readiness
	}
	var ready struct{ Pipelines []readiness }
	w := get(t, s, "/readyz")
	decode(t, w, &ready)
	if diff := cmp.Diff([]readiness{
		{Name: "shop", Class: "database", Sinks: []readiness{{Name: "stream", Ready: true}, {Name: "crm", Class: "database"}}},
		{Name: "orders", Ready: true},
	}, ready.Pipelines); diff != "" || w.Code != 503 {
		t.Errorf("/readyz answers %d: %s", w.Code, diff)
	}
}

func TestSinkState(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]buffer.SinkStatus{
		"idle": {}, "sending": {Leased: 1, Waiting: 1, Due: 1}, "due": {Waiting: 2, Due: 1}, "retries in 1.5s": {Waiting: 1, Next: 1500 * time.Millisecond},
		"dropped": {Waiting: 1, Dropped: true}, "deleting": {Delivered: 1, Due: 1}, "not routed yet": {Name: "*", Pending: 1, Dead: 1}, "no sink takes them": {Name: "*", Dead: 1},
		"kept until a sink takes them": {Name: "*", Pending: 1, Waiting: 1},
	} {
		if got := sinkState(&s, true, []buffer.Relay{{}}); got != want {
			t.Errorf("%+v is %q, want %q", s, got, want)
		}
	}
	// Events that no relay gives to their sinks, while nothing is delivered.
	for last, want := range map[time.Duration]string{70 * time.Second: "stands still 1m", time.Second: "not routed yet"} {
		relay := buffer.Relay{RelayReport: buffer.RelayReport{LastDelivery: last}, Uptime: time.Hour}
		if got := sinkState(&buffer.SinkStatus{Name: "*", Pending: 196, OldestPending: 2 * time.Minute}, true, []buffer.Relay{relay}); got != want {
			t.Errorf("%v after the last delivery the state is %q, want %q", last, got, want)
		}
	}
	early, late := buffer.Wait{Error: "503", Batches: 1, Early: true}, buffer.Wait{Error: "422", Batches: 1}
	for want, waits := range map[string][]buffer.Wait{"trying sink": {early}, "retries in 4m 0s": {early, late}} {
		if got := sinkState(&buffer.SinkStatus{Waiting: 2, Next: 4 * time.Minute, Waits: waits}, true, []buffer.Relay{{RelayReport: buffer.RelayReport{Probes: true}}}); got != want {
			t.Errorf("while %+v wait the state is %q, want %q", waits, got, want)
		}
	}
	// A batch that fails again although the sink took others waits until it is due.
	if got := sinkState(&buffer.SinkStatus{Waiting: 2, Next: 4 * time.Minute, Waits: []buffer.Wait{early}}, true, []buffer.Relay{{}}); got != "retries in 4m 0s" {
		t.Errorf("while the relay does not probe the sink the state is %q", got)
	}
	// What is stuck is a part of the events, or all of them.
	for ago, want := range map[time.Duration]string{3 * time.Second: "some stuck 1m", 70 * time.Second: "stalled 1m", -1: "stalled 1m"} {
		relay := buffer.Relay{RelayReport: buffer.RelayReport{NotReadyClass: "stalled", NotReadyFor: time.Minute, LastMinute: 60, LastDelivery: ago}}
		if got := sinkState(&buffer.SinkStatus{Waiting: 1}, true, []buffer.Relay{relay}); got != want {
			t.Errorf("stalled for 1m, the last delivery %v ago: %q, want %q", ago, got, want)
		}
	}
	// A sink that named a time is not probed.
	for want, wait := range map[string]buffer.Wait{"asked to wait 28m": {First: 28 * time.Minute}, "sink down 1m": {First: 28 * time.Minute, Early: true}} {
		relay := buffer.Relay{RelayReport: buffer.RelayReport{NotReadyClass: "sink", NotReadyFor: time.Minute, LastDelivery: -1}}
		if got := sinkState(&buffer.SinkStatus{Waiting: 1, Next: wait.First, Waits: []buffer.Wait{wait}}, true, []buffer.Relay{relay}); got != want {
			t.Errorf("while %+v waits the state is %q, want %q", wait, got, want)
		}
	}
	for kind, want := range map[string]string{buffer.KindFull: "sink full 3m", buffer.KindAccess: "no access 3m", buffer.KindAsked: "sink down 3m"} {
		relay := buffer.Relay{RelayReport: buffer.RelayReport{NotReadyClass: "sink", NotReadyKind: kind, NotReadyFor: 200 * time.Second, LastDelivery: -1}}
		if got := sinkState(&buffer.SinkStatus{Waiting: 1}, true, []buffer.Relay{relay}); got != want {
			t.Errorf("the state is %q, want %q", got, want)
		}
	}
	lock := buffer.Relay{RelayReport: buffer.RelayReport{NotReadyClass: "database", NotReadyKind: buffer.KindLocked, NotReadyFor: 200 * time.Second, LastDelivery: -1}}
	if got := sinkState(&buffer.SinkStatus{Waiting: 1}, true, []buffer.Relay{lock}); got != "table locked 3m" {
		t.Errorf("the state is %q", got)
	}
	// During an outage the half-open probes are sent, and the last minute was a good one.
	for class, want := range map[string]string{"sink": "sink down 3m", "refusing": "refusing 3m", "database": "db error 3m", "stalled": "stalled 3m"} {
		down := buffer.Relay{RelayReport: buffer.RelayReport{NotReady: class + ": why", NotReadyClass: class, NotReadyFor: 200 * time.Second, LastMinute: 7, LastDelivery: 201 * time.Second}}
		if got := sinkState(&buffer.SinkStatus{Leased: 1, Waiting: 2, Due: 1}, true, []buffer.Relay{down}); got != want {
			t.Errorf("the state is %q, want %q", got, want)
		}
		if got := sinkState(&buffer.SinkStatus{Leased: 1, Waiting: 2, Due: 1}, true, []buffer.Relay{down, {}}); got != "sending" {
			t.Errorf("the state is %q with another relay that is ready", got)
		}
	}
	killed := buffer.Relay{Seen: 21 * time.Second, RelayReport: buffer.RelayReport{LastMinute: 7}}
	if got := sinkState(&buffer.SinkStatus{Waiting: 1, Due: 1}, true, []buffer.Relay{killed}); got != "no relay" {
		t.Errorf("the state is %q without a relay that runs", got)
	}
	if got := sinkState(&buffer.SinkStatus{}, true, []buffer.Relay{killed, {RelayReport: buffer.RelayReport{LastMinute: 7}}}); got != "sending" {
		t.Errorf("the state is %q after deliveries", got)
	}
}

// TestClaimingStopped_Sinks: claims go on while one of the sinks has room.
func TestClaimingStopped_Sinks(t *testing.T) {
	t.Parallel()
	s := buffer.Status{Waiting: 4000, Sinks: []buffer.SinkStatus{{Name: "a", Waiting: 999}, {Name: "b", Waiting: 3000}}}
	if text := claimingStopped(1000, []string{"a", "b"}, &s); text != "" {
		t.Error(text)
	}
	s.Sinks[0].Delivered = 1
	if text := claimingStopped(1000, []string{"a", "b"}, &s); text != "nothing more is claimed: at every sink 1,000 or more batches wait for a retry or a delete (max_waiting)" {
		t.Error(text)
	}
}

func decode(t *testing.T, w *httptest.ResponseRecorder, into any) {
	t.Helper()
	if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
		t.Fatal(err)
	}
}

// TestRelayProblems_Quote: the line of a relay says what it knows besides the error, which the line of the waiting batches has.
func TestRelayProblems_Quote(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{
		"sink: 3 sends in a row delivered nothing, the last: 503 with s3cret": "the sink is unavailable",
		"sink: 503 with s3cret":    "the sink is unavailable",
		"stalled: 503 with s3cret": "nothing is delivered",
		"stalled: 1 batch is not accepted while others are; batch 7 has waited for 1m50s: 503 with s3cret": "stalled: 1 batch is not accepted while others are; batch 7 has waited for 1m50s",
		"stalled: events wait, and none was delivered or buried for 1m0s":                                  "stalled: events wait, and none was delivered or buried for 1m0s",
	} {
		class, _, _ := strings.Cut(reason, ":")
		s := &buffer.Status{
			Waits:  []buffer.Wait{{Error: "503 with s3cret", Batches: 1}},
			Relays: []buffer.Relay{{Owner: "web/1/shop", RelayReport: buffer.RelayReport{NotReady: reason, NotReadyClass: class, NotReadyFor: time.Minute}}},
		}
		got, _ := relayProblems(s, nil, func(text string) string { return strings.ReplaceAll(text, "s3cret", "***") })
		if diff := cmp.Diff([]string{"relay web/1 has not been ready for 1m 0s: " + want}, got); diff != "" {
			t.Error(diff)
		}
	}
}

// TestRelayProblems_AllRelays: relays that say the same are all named, so that an outage does not look like a problem of one host.
func TestRelayProblems_AllRelays(t *testing.T) {
	t.Parallel()
	relay := func(owner, sink, reason string, since, seen time.Duration) buffer.Relay {
		return buffer.Relay{Owner: owner + "/shop", Sink: sink, Seen: seen, RelayReport: buffer.RelayReport{NotReady: reason, NotReadyClass: "sink", NotReadyFor: since, Notice: "slow"}}
	}
	for name, c := range map[string]struct {
		relays        []buffer.Relay
		want, notices []string
	}{
		"one reason": {
			[]buffer.Relay{relay("a/1", "", "sink: 503", time.Minute, time.Second), relay("b/2", "", "sink: 503", 2*time.Minute, 0)},
			[]string{"2 relays (a/1, b/2) have not been ready for 2m 0s: sink: 503"},
			[]string{"2 relays (a/1, b/2): slow"},
		},
		"two reasons": {
			[]buffer.Relay{relay("a/1", "", "sink: 503", time.Minute, 0), relay("b/2", "", "sink: 401", time.Minute, 0)},
			[]string{"relay a/1 has not been ready for 1m 0s: sink: 503", "relay b/2 has not been ready for 1m 0s: sink: 401"},
			[]string{"2 relays (a/1, b/2): slow"},
		},
		"of several sinks": {
			[]buffer.Relay{relay("a/1", "crm", "sink: 503", time.Minute, 0), relay("a/1", "log", "sink: 503", time.Minute, 0), relay("b/2", "crm", "sink: 503", time.Minute, 0)},
			[]string{"2 relays (a/1, b/2), sink crm, have not been ready for 1m 0s: sink: 503", "relay a/1, sink log has not been ready for 1m 0s: sink: 503"},
			[]string{"2 relays (a/1, b/2), sink crm: slow", "relay a/1, sink log: slow"},
		},
		"with the error of the batches": {
			[]buffer.Relay{relay("a/1", "", "sink: 3 sends in a row delivered nothing, the last: 503 at 10:00", time.Minute, 0), relay("b/2", "", "sink: 4 sends in a row delivered nothing, the last: 503 at 10:00", time.Minute, 0)},
			[]string{"2 relays (a/1, b/2) have not been ready for 1m 0s: the sink is unavailable"},
			[]string{"2 relays (a/1, b/2): slow"},
		},
		"many": {
			[]buffer.Relay{
				relay("a/1", "", "sink: 503", time.Minute, 0), relay("a/2", "", "sink: 503", time.Minute, 0), relay("a/3", "", "sink: 503", time.Minute, 0),
				relay("a/4", "", "sink: 503", time.Minute, 0), relay("a/5", "", "sink: 503", time.Minute, 0), relay("a/6", "", "sink: 503", time.Minute, 0),
			},
			[]string{"6 relays (a/1, a/2, a/3, a/4, a/5, and 1 more) have not been ready for 1m 0s: sink: 503"},
			[]string{"6 relays (a/1, a/2, a/3, a/4, a/5, and 1 more): slow"},
		},
	} {
		same := func(text string) string { return text }
		s := &buffer.Status{Relays: c.relays, Waits: []buffer.Wait{{Error: "503 at 10:00", Batches: 1}}}
		got, _ := relayProblems(s, []string{"crm", "log"}, same)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(c.notices, relayNotices(c.relays, []string{"crm", "log"}, same)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestWaitReports_OneCause: batches that wait for one cause are counted together, whatever numbers its text has.
func TestWaitReports_OneCause(t *testing.T) {
	t.Parallel()
	got := waitReports([]buffer.Wait{
		{Error: "OOM (at event 1 of 10)", Batches: 3, Events: 30, First: time.Second, Last: 3 * time.Second, Early: true},
		{Error: "POST /: 429 Too Many Requests", Batches: 1, Events: 1},
		{Error: "OOM (at event 1 of 20)", Batches: 1, Events: 20, First: 2 * time.Second, Last: 5 * time.Second, Early: true},
		{Error: "deferred: OOM (at event 1 of 40)", Batches: 1, Events: 40, Early: true},
		{Error: "POST /: 503 Service Unavailable", Batches: 1, Events: 1},
	}, true, func(text string) string { return text })
	want := []WaitReport{
		{Error: "OOM (at event 1 of 10)", Batches: 5, Events: 90, LastDueInSeconds: 5, Early: true},
		{Error: "POST /: 429 Too Many Requests", Batches: 1, Events: 1},
		{Error: "POST /: 503 Service Unavailable", Batches: 1, Events: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestWaitReports_Addresses: batches that one full server keeps waiting are one reason, whatever subject, stream or topic each of them has, and the most frequent reason is first.
func TestWaitReports_Addresses(t *testing.T) {
	t.Parallel()
	got := waitReports([]buffer.Wait{
		{Error: "503", Batches: 2, Events: 2},
		{Error: `subject "orders.paid": sink full: maximum messages exceeded`, Batches: 1, Events: 3},
		{Error: `subject "billing.charged": sink full: maximum messages exceeded`, Batches: 1, Events: 3},
		{Error: `redis stream "a.x": OOM (at event 1 of 2)`, Batches: 1, Events: 2},
		{Error: `subject "orders.created": sink full: maximum messages exceeded`, Batches: 1, Events: 3},
		{Error: `redis stream "b.x": OOM (at event 2 of 4)`, Batches: 1, Events: 4},
		{Error: "the fourth reason", Batches: 1, Events: 1},
	}, false, func(text string) string { return text })
	want := []WaitReport{
		{Error: `subject "orders.paid": sink full: maximum messages exceeded`, Batches: 3, Events: 9},
		{Error: "503", Batches: 2, Events: 2},
		{Error: `redis stream "a.x": OOM (at event 1 of 2)`, Batches: 2, Events: 6},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestPipelineState_StandsStill: a pipeline in which events wait and nothing is claimed is not idle.
func TestPipelineState_StandsStill(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		oldest, last, uptime time.Duration
		pending              int64
		want                 string
	}{
		"nothing waits":         {0, time.Hour, time.Hour, 0, "idle"},
		"waits for a moment":    {5 * time.Second, time.Hour, time.Hour, 1, "idle"},
		"waits for long":        {73 * time.Second, time.Hour, time.Hour, 261, "stands still 1m"},
		"delivered some before": {time.Hour, 40 * time.Second, time.Hour, 261, "stands still 40s"},
		"delivers":              {time.Hour, time.Second, time.Hour, 261, "sending"},
		"started just now":      {time.Hour, -1, time.Second, 261, "idle"},
	} {
		relay := buffer.Relay{RelayReport: buffer.RelayReport{LastDelivery: c.last}, Uptime: c.uptime}
		if c.last >= 0 && c.last < time.Minute {
			relay.LastMinute = 1
		}
		if got := pipelineState(&buffer.Status{Pending: c.pending, OldestPending: c.oldest, Relays: []buffer.Relay{relay}}); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
