package buffertest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var pauseCases = []testCase{
	{name: "pause/every process reads it, until it is resumed", run: pausePipeline},
	{name: "pause/nothing but a sink of the buffer can be paused", run: pauseNoSink},
}

var sinksPauseCases = []sinksTestCase{
	{name: "pause/a sink that is paused", run: pauseSink},
	{name: "pause/a sink that is dropped", run: pauseDropped},
	{name: "pause/a sink that is paused and renamed", run: pauseRenamed},
}

func pauser(t *testing.T, b buffer.Buffer) buffer.Pauser {
	t.Helper()
	p, is := b.(buffer.Pauser)
	if !is {
		t.Fatalf("%T is no buffer.Pauser", b)
	}
	return p
}

// expectPaused checks what a queue says of a pause.
func expectPaused(t *testing.T, name string, q buffer.Queue, want bool) {
	t.Helper()
	pausable, is := q.(buffer.Pausable)
	if !is {
		t.Fatalf("%T is no buffer.Pausable", q)
	}
	got, err := pausable.Paused(t.Context())
	ok(t, "Paused", err)
	equal(t, name+" is paused", got, want)
	backlog, err := q.CountBacklog(t.Context(), 10)
	ok(t, "CountBacklog", err)
	equal(t, name+" is paused, as counted", backlog.Paused, want)
}

// pauses returns what the status says is paused, without the times.
func pauses(t *testing.T, b buffer.Buffer) []buffer.Pause {
	t.Helper()
	status, err := b.Status(t.Context())
	ok(t, "Status", err)
	for i := range status.Pauses {
		if p := &status.Pauses[i]; p.For < 0 || p.For > time.Minute {
			t.Errorf("%+v began %v ago", p, p.For)
		}
		status.Pauses[i].For = 0
	}
	return status.Pauses
}

func pausePipeline(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	_, err := f.Buffer.Claim(t.Context(), 1, time.Minute) // a relay has used it
	ok(t, "Claim", err)
	other := f.Second(t)
	change := func(what string, want bool, act func() (bool, error)) {
		t.Helper()
		changed, err := act()
		ok(t, what, err)
		equal(t, what+" changed something", changed, want)
	}
	expect := func(want ...buffer.Pause) {
		t.Helper()
		if got := pauses(t, other); !slices.Equal(got, want) {
			t.Errorf("pauses are %+v, want %+v", got, want)
		}
		for _, b := range []buffer.Buffer{f.Buffer, other} {
			expectPaused(t, "the pipeline", b, len(want) > 0)
		}
	}
	p := pauser(t, f.Buffer)
	expect()
	change("Resume", false, func() (bool, error) { return p.Resume(t.Context(), "") })
	change("Pause", true, func() (bool, error) { return p.Pause(t.Context(), "", "alice", "the CRM is moved") })
	expect(buffer.Pause{By: "alice", Reason: "the CRM is moved"})
	change("Pause again", false, func() (bool, error) { return pauser(t, other).Pause(t.Context(), "", "bob", "") })
	expect(buffer.Pause{By: "alice", Reason: "the CRM is moved"})
	change("Resume", true, func() (bool, error) { return pauser(t, other).Resume(t.Context(), "") })
	expect()
	change("Pause", true, func() (bool, error) { return p.Pause(t.Context(), "", "bob", "") })
	expect(buffer.Pause{By: "bob"})
}

func pauseNoSink(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	_, err := f.Buffer.Claim(t.Context(), 1, time.Minute)
	ok(t, "Claim", err)
	for what, act := range map[string]func(p buffer.Pauser) (bool, error){
		"Pause":  func(p buffer.Pauser) (bool, error) { return p.Pause(t.Context(), "crm", "alice", "") },
		"Resume": func(p buffer.Pauser) (bool, error) { return p.Resume(t.Context(), "crm") },
	} {
		changed, err := act(pauser(t, f.Buffer))
		if missing, is := errors.AsType[*buffer.NoSinkError](err); changed || !is || missing.Name != "crm" {
			t.Errorf("%s of a sink that is not there: %v, %v", what, changed, err)
		}
	}
	expectPaused(t, "the pipeline", f.Buffer, false)
}

// The queue of a sink is paused with the sink or with the pipeline; a pause of a sink is none of the pipeline or of its other sinks.
func pauseSink(t *testing.T, p *sinksCase) {
	b := p.open(t, twoRoutes...)
	expect := func(pipeline, all, crm bool) {
		t.Helper()
		expectPaused(t, "the pipeline", b, pipeline)
		expectPaused(t, "sink all", b.Sink("all"), all)
		expectPaused(t, "sink crm", b.Sink("crm"), crm)
	}
	act := func(what string, f func() (bool, error)) {
		t.Helper()
		changed, err := f()
		ok(t, what, err)
		equal(t, what+" changed something", changed, true)
	}
	pause := pauser(t, b)
	expect(false, false, false)
	act("Pause", func() (bool, error) { return pause.Pause(t.Context(), "crm", "alice", "it moves") })
	expect(false, false, true)
	act("Pause", func() (bool, error) { return pause.Pause(t.Context(), "", "bob", "") })
	expect(true, true, true)
	if got, want := pauses(t, b), []buffer.Pause{{By: "bob"}, {Sink: "crm", By: "alice", Reason: "it moves"}}; !slices.Equal(got, want) {
		t.Errorf("pauses are %+v, want %+v", got, want)
	}
	act("Resume", func() (bool, error) { return pause.Resume(t.Context(), "") })
	expect(false, false, true)
	act("Resume", func() (bool, error) { return pause.Resume(t.Context(), "crm") })
	expect(false, false, false)
}

// A sink that is dropped cannot be paused. One that was paused before is paused when the drop is taken back.
func pauseDropped(t *testing.T, p *sinksCase) {
	b := p.open(t, twoRoutes...)
	ok(t, "DropSink", b.DropSink(t.Context(), "crm", buffer.DroppedDiscarded))
	changed, err := pauser(t, b).Pause(t.Context(), "crm", "alice", "")
	if missing, is := errors.AsType[*buffer.NoSinkError](err); changed || !is || !slices.Equal(missing.Known, []string{"all"}) {
		t.Errorf("Pause of a dropped sink: %v, %v", changed, err)
	}
	ok(t, "RestoreSink", b.RestoreSink(t.Context(), "crm"))
	expectPaused(t, "sink crm", b.Sink("crm"), false)
	_, err = pauser(t, b).Pause(t.Context(), "crm", "alice", "")
	ok(t, "Pause", err)
	ok(t, "DropSink", b.DropSink(t.Context(), "crm", buffer.DroppedDiscarded))
	expectPaused(t, "sink crm, which is dropped", b.Sink("crm"), true)
	ok(t, "RestoreSink", b.RestoreSink(t.Context(), "crm"))
	expectPaused(t, "sink crm, which was dropped", b.Sink("crm"), true)
}

func pauseRenamed(t *testing.T, p *sinksCase) {
	b := p.open(t, twoRoutes...)
	changed, err := pauser(t, b).Pause(t.Context(), "crm", "alice", "")
	ok(t, "Pause", err)
	equal(t, "Pause changed something", changed, true)
	renamed := p.open(t, twoRoutes[0], buffer.Route{Sink: "sales", Was: "crm", BatchSize: 100})
	expectPaused(t, "sink sales", renamed.Sink("sales"), true)
	expectPaused(t, "sink crm of an old relay", b.Sink("crm"), true)
	changed, err = pauser(t, b).Resume(t.Context(), "sales")
	ok(t, "Resume", err)
	equal(t, "Resume changed something", changed, true)
	expectPaused(t, "sink sales", renamed.Sink("sales"), false)

	before := p.open(t, twoRoutes[0], buffer.Route{Sink: "sales", BatchSize: 100}, buffer.Route{Sink: "old", BatchSize: 100})
	_, err = pauser(t, before).Pause(t.Context(), "old", "alice", "")
	ok(t, "Pause", err)
	merged := p.open(t, twoRoutes[0], buffer.Route{Sink: "sales", Was: "old", BatchSize: 100})
	expectPaused(t, "sink sales, which takes the place of a paused one", merged.Sink("sales"), true)
}
