package pipeline

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// reports are what a relay has written.
type reports struct {
	all []buffer.RelayReport
	err error
	// full is why the disk of the database has no room.
	full error
}

func (r *reports) CheckSpace(context.Context) error { return r.full }

func (r *reports) ReportRelay(_ context.Context, one buffer.RelayReport) error {
	if r.err == nil {
		r.all = append(r.all, one)
	}
	return r.err
}

func (r *reports) last() buffer.RelayReport { return r.all[len(r.all)-1] }

// oddSink is a sink with notices.
type oddSink struct {
	sink.Sink
	notices []sink.Notice
}

func (s *oddSink) Notices() []sink.Notice { return s.notices }

func (s *oddSink) says(passing, settled string) {
	s.notices = nil
	if passing != "" {
		s.notices = append(s.notices, sink.Notice{Text: passing})
	}
	if settled != "" {
		s.notices = append(s.notices, sink.Notice{Text: settled, Settled: true})
	}
}

// archiveMemory is that of a buffer without an archive.
type archiveMemory struct {
	remembered int
	forgotten  string
}

func (m *archiveMemory) RememberArchive(context.Context) error {
	m.remembered++
	return nil
}

func (m *archiveMemory) ForgottenArchive(context.Context) (string, error) { return m.forgotten, nil }

func TestReporter(t *testing.T) {
	t.Parallel()
	type harness struct {
		*reporter
		to      *reports
		log     *bytes.Buffer
		notOK   error
		waiting int
		// changed is what has changed of the configuration, by the class of why it is not ready.
		changed map[string]string
	}
	run := func(name string, test func(t *testing.T, h *harness)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := &harness{to: &reports{}, log: &bytes.Buffer{}}
				h.reporter = &reporter{
					to: h.to, progress: &progress{}, version: "v1", ready: func() error { return h.notOK }, waiting: func() int { return h.waiting },
					redact: func(text string) string { return strings.ReplaceAll(text, "s3cret", "***") }, log: slog.New(slog.NewTextHandler(h.log, nil)),
					written: func(error) {}, notices: &notices{}, onUnaccepted: func(string, time.Time) {}, outdated: func(class string) string { return h.changed[class] },
				}
				test(t, h)
			})
		})
	}
	wait := func(d time.Duration) {
		<-time.After(d)
		synctest.Wait()
	}
	batchNow := func() *buffer.Lease {
		l := &buffer.Lease{Batch: buffer.Batch{Events: make([]outbox.Event, 7)}, ClaimedAt: time.Now(), ClaimedLocal: time.Now()}
		for i := range l.Events {
			l.Events[i].ID, l.Events[i].CreatedAt = int64(i+1), time.Now()
		}
		return l
	}

	run("Idle", func(t *testing.T, h *harness) {
		stop := h.start(t.Context())
		wait(10*time.Minute + time.Second)
		if n := len(h.to.all); n != 61 || !h.to.all[0].First || h.to.all[1].First || h.to.last().LastDelivery >= 0 {
			t.Errorf("%d reports in ten minutes, the first %+v, the last %+v", n, h.to.all[0], h.to.last())
		}
		stop()
		if last := h.to.last(); !last.Stopped || last.Version != "v1" || h.log.Len() > 0 {
			t.Errorf("the last report is %+v, the log %q", last, h.log)
		}
	})
	run("RefusesSome", func(t *testing.T, h *harness) {
		defer h.start(t.Context())()
		refused := &NotReady{class: refusing, err: errors.New("422")}
		for range 6 { // the other topics are accepted in between
			h.notOK = refused
			wait(3 * time.Second)
			h.notOK = nil
			wait(7 * time.Second)
		}
		h.notOK = refused
		wait(2 * time.Second)
		if last := h.to.last(); last.NotReadyFor < time.Minute {
			t.Errorf("a sink that has refused a topic for a minute is said to refuse it for %v", last.NotReadyFor)
		}
		h.notOK = nil
		wait(time.Minute)
		h.notOK = refused
		wait(2 * time.Second)
		if last := h.to.last(); last.NotReadyFor > 2*time.Second {
			t.Errorf("after a minute without refusals the report says %v", last.NotReadyFor)
		}
	})
	run("Deliveries", func(t *testing.T, h *harness) {
		defer h.start(t.Context())()
		wait(36 * time.Second) // the last report was five seconds ago
		h.progress.settled(batchNow(), []buffer.Outcome{{Verdict: buffer.Delivered, IDs: []int64{1, 2, 3, 4, 5}}, {Verdict: buffer.Dead, IDs: []int64{6}}, {Verdict: buffer.Retry, IDs: []int64{7}}}, time.Now().Add(time.Minute))
		wait(2 * time.Second)
		if last := h.to.last(); last.Delivered != 5 || last.Dead != 1 || last.LastMinute != 5 || last.LastDelivery < 0 || last.LastDelivery > 2*time.Second {
			t.Errorf("two seconds later the report is %+v", last)
		}
		wait(4 * time.Second)
		h.progress.settled(batchNow(), []buffer.Outcome{{Verdict: buffer.Delivered}}, time.Now().Add(time.Minute))
		wait(50 * time.Second)
		if last := h.to.last(); last.Delivered != 12 || last.LastMinute != 12 && last.LastMinute != 7 {
			t.Errorf("within the minute the report is %+v", last)
		}
		if last := h.to.last(); last.Latencies.String() != "60:12" {
			t.Errorf("the latencies are %v; want twelve of a minute", last.Latencies)
		}
		wait(time.Minute)
		if last := h.to.last(); last.Delivered != 12 || last.LastMinute != 0 || last.LastDelivery < time.Minute {
			t.Errorf("a minute later the report is %+v", last)
		}
		if n := len(h.to.all); n > 2*60/5+9 {
			t.Errorf("%d reports in two and a half minutes", n)
		}
		if want := `msg="delivered in the last minute" events=12 per_second=0 dead=1 batches_waiting=0`; strings.Count(h.log.String(), want) != 1 || strings.Count(h.log.String(), "\n") != 1 {
			t.Errorf("the log is %q; want one line with %q", h.log, want)
		}
	})
	run("FirstDelivery", func(t *testing.T, h *harness) {
		defer h.start(t.Context())()
		one := []buffer.Outcome{{Verdict: buffer.Delivered, IDs: []int64{1}}}
		for i := range 3 {
			wait(11 * time.Second) // the last report was a second ago
			h.progress.settled(batchNow(), one, time.Now())
			wait(1100 * time.Millisecond)
			if last := h.to.last(); last.Delivered != int64(i+1) || last.LastDelivery < 0 || last.LastDelivery > 2*time.Second {
				t.Errorf("a second after delivery %d the report is %+v", i+1, last)
			}
		}
		before := len(h.to.all)
		for range 20 { // no quiet between them
			h.progress.settled(batchNow(), one, time.Now())
			wait(time.Second)
		}
		if n := len(h.to.all) - before; n < 4 || n > 5 {
			t.Errorf("%d reports in 20 seconds of deliveries", n)
		}
	})
	run("NotReady", func(t *testing.T, h *harness) {
		h.notOK, h.waiting = errStarting, 3
		defer h.start(t.Context())()
		wait(10 * time.Second)
		if last := h.to.last(); last.NotReady != "" {
			t.Errorf("while it starts the report is %+v", last)
		}
		h.notOK = &NotReady{class: atSink, err: errors.New("503 to s3cret")}
		wait(2 * time.Second)
		if last := h.to.last(); last.NotReady != "sink: 503 to ***" || last.NotReadyClass != "sink" {
			t.Errorf("the report is %+v", last)
		}
		wait(time.Minute)
		if last := h.to.last(); last.NotReadyFor < 50*time.Second || last.NotReadyFor > time.Minute {
			t.Errorf("a minute later the report is %+v", last)
		}
		h.notOK = nil
		wait(2 * time.Second)
		if last := h.to.last(); last.NotReady != "" {
			t.Errorf("when it recovered the report is %+v", last)
		}
		wait(time.Minute)
		if !strings.Contains(h.log.String(), "events=0 per_second=0 dead=0 batches_waiting=3") {
			t.Errorf("the log is %q", h.log)
		}
	})
	run("FullDisk", func(t *testing.T, h *harness) {
		h.written = func(err error) {
			if h.notOK = nil; err != nil {
				h.notOK = &NotReady{class: database, err: err}
			}
		}
		h.to.full = buffer.ErrNoWrites
		defer h.start(t.Context())()
		wait(2 * time.Second)
		if last := h.to.last(); last.NotReadyClass != "database" || last.NotReady != "database: the database takes no writes" {
			t.Errorf("with a full disk the report is %+v", last)
		}
		h.to.full = nil
		wait(buffer.ReportEvery + time.Second)
		if last := h.to.last(); last.NotReady != "" {
			t.Errorf("with room on the disk the report is %+v", last)
		}
	})
	run("TwoOutages", func(t *testing.T, h *harness) {
		defer h.start(t.Context())()
		h.notOK = &NotReady{class: atSink, kind: buffer.KindFull, err: errors.New("full")}
		wait(20*time.Second + time.Millisecond)
		h.progress.settled(batchNow(), []buffer.Outcome{{Verdict: buffer.Delivered}}, time.Now()) // it was back for less than a tick
		h.notOK = &NotReady{class: atSink, err: errors.New("503")}
		wait(2 * time.Second)
		if last := h.to.last(); last.NotReadyClass != "sink" || last.NotReadyFor > 2*time.Second {
			t.Errorf("two seconds after the second outage began the report is %+v", last)
		}
	})
	run("Notices", func(t *testing.T, h *harness) {
		defer h.start(t.Context())()
		wait(10*time.Second + time.Millisecond)
		h.notices.set("slow", "takes 20 s\nwith s3cret")
		h.notices.set("odd", "answers nothing")
		wait(reportChanged)
		if got, want := h.to.last().Notice, "answers nothing\ntakes 20 s with ***"; got != want {
			t.Errorf("the notice is %q, want %q", got, want)
		}
		h.notices.set("odd", "")
		h.notices.set("slow", "")
		wait(reportChanged)
		if got := h.to.last().Notice; got != "" {
			t.Errorf("when nothing is to be noticed the notice is %q", got)
		}
	})
	run("Answers", func(t *testing.T, h *harness) {
		odd := &oddSink{}
		p := &Pipeline{sink: odd, reports: make(chan chan struct{}), config: Config{Log: slog.New(slog.DiscardHandler)}}
		h.notices, h.requests = &p.notices, p.reports
		stop := h.start(t.Context())
		wait(2 * time.Second)
		odd.says("takes halves", "")
		p.noticeAnswers()
		before := len(h.to.all)
		odd.says("takes halves", "answers a page to s3cret")
		p.noticeAnswers()
		if last := h.to.last(); len(h.to.all) != before+1 || last.Answers != "the sink answers a page to ***" || last.Notice != "the sink takes halves" {
			t.Errorf("when the events may be deleted the report is %+v; %d more", last, len(h.to.all)-before)
		}
		odd.says("", "answers two pages")
		p.noticeAnswers()
		if n := len(h.to.all) - before; n != 1 {
			t.Errorf("%d reports at once; want the first", n)
		}
		wait(reportChanged + reportTick)
		if last := h.to.last(); last.Answers != "the sink answers two pages" || last.Notice != "" {
			t.Errorf("later the report is %+v", last)
		}
		stop()
		if last := h.to.last(); !last.Stopped || last.Answers != "the sink answers two pages" {
			t.Errorf("the last report is %+v", last)
		}
	})
	run("Archive", func(t *testing.T, h *harness) {
		memory := &archiveMemory{}
		h.archive = memory
		defer h.start(t.Context())()
		wait(10 * time.Second)
		if last := h.to.last(); memory.remembered != 1 || last.Notice != "" {
			t.Errorf("remembered %d times, the notice is %q", memory.remembered, last.Notice)
		}
		memory.forgotten = "outbox_archive"
		wait(10 * time.Minute)
		if last := h.to.last(); !strings.Contains(last.Notice, "copied delivered events to outbox_archive") || strings.Count(h.log.String(), "level=WARN") != 1 {
			t.Errorf("the notice is %q, the log\n%s", last.Notice, h.log)
		}
		memory.forgotten = ""
		wait(2 * time.Minute)
		if last := h.to.last(); last.Notice != "" {
			t.Errorf("when it is off on purpose the notice is %q", last.Notice)
		}
	})
	run("Slow", func(t *testing.T, h *harness) {
		o := observer{noObserver{}, &Pipeline{}}
		h.notices = &o.p.notices
		defer h.start(t.Context())()
		o.Sent(batchNow(), 20*time.Second)
		wait(10 * time.Second)
		if got, want := h.to.last().Notice, "the sink is slow to answer: the last send took 20s"; got != want {
			t.Errorf("the notice is %q, want %q", got, want)
		}
		o.Sent(batchNow(), slowAfter-time.Millisecond)
		wait(10 * time.Second)
		if got := h.to.last().Notice; got != "" {
			t.Errorf("when the sink is fast again the notice is %q", got)
		}
		o.Sent(batchNow(), 20*time.Second)
		o.Settled(batchNow(), []buffer.Outcome{{Verdict: buffer.Retry, Outages: 1, Error: "context deadline exceeded"}}, true, 0)
		wait(10 * time.Second)
		if got := h.to.last().Notice; got != "" {
			t.Errorf("when the sink does not answer the notice is %q", got)
		}
	})
	run("Outdated", func(t *testing.T, h *harness) {
		h.changed = map[string]string{"sink": "token changed"}
		defer h.start(t.Context())()
		wait(10 * time.Second)
		if got := h.to.last().Notice; got != "" {
			t.Errorf("while it is ready the notice is %q", got)
		}
		h.notOK = &NotReady{class: atSink, err: errors.New("401")}
		if err := withOutdated(h.notOK, h.outdated); err.Error() != "sink: 401; token changed" {
			t.Errorf("the reason is %q", err)
		}
		wait(5*time.Minute + time.Second)
		if got := h.to.last().Notice; got != "token changed" {
			t.Errorf("the notice is %q", got)
		}
		if n := strings.Count(h.log.String(), `change="token changed"`); n < 5 || n > 6 {
			t.Errorf("in five minutes the log has %d lines:\n%s", n, h.log)
		}
		h.notOK = &NotReady{class: database, err: errors.New("no route")}
		wait(10 * time.Second)
		if got := h.to.last().Notice; got != "" {
			t.Errorf("while the database is away the notice is %q", got)
		}
		h.notOK = nil
		wait(10 * time.Second)
		if got := h.to.last().Notice; got != "token changed" {
			t.Errorf("while it is ready again the notice is %q", got)
		}
		h.changed = nil
		wait(10 * time.Second)
		if got := h.to.last().Notice; got != "" {
			t.Errorf("when the content is the old one again the notice is %q", got)
		}
	})
	run("DatabaseAway", func(t *testing.T, h *harness) {
		h.to.err = errors.New("no route")
		defer h.start(t.Context())()
		wait(5 * time.Minute)
		if n := strings.Count(h.log.String(), "no route"); n != 1 {
			t.Errorf("the log has %d warnings; want 1:\n%s", n, h.log)
		}
		h.failing, h.notOK = false, &NotReady{class: database, err: errors.New("no route")}
		wait(time.Minute)
		if n := strings.Count(h.log.String(), "no route"); n != 1 {
			t.Errorf("the log has %d warnings, the last of what other lines say:\n%s", n, h.log)
		}
		h.to.err = nil
		wait(time.Minute + time.Second)
		if len(h.to.all) == 0 || !h.to.all[0].First {
			t.Errorf("reports when it is back: %+v", h.to.all)
		}
	})
}

// TestHealth_Locked: a database in which a transaction has locked a table works, and the reason says so, whatever took too long.
func TestHealth_Locked(t *testing.T) {
	t.Parallel()
	locked := &buffer.LockedError{Text: "table public.orders is locked", Fix: "SELECT pg_terminate_backend(7)", Err: context.DeadlineExceeded}
	for name, note := range map[string]func(*health, error){"count": (*health).buffer, "claim": (*health).claim, "take-over": (*health).takeOver} {
		h := &health{}
		note(h, locked)
		why, ok := errors.AsType[*NotReady](h.ready(time.Now(), nil))
		if !ok || why.Kind() != buffer.KindLocked || why.Class() != buffer.NotReadyDatabase || !strings.Contains(why.Error(), locked.Error()) {
			t.Errorf("%s: readiness is %v", name, why)
		}
		note(h, context.DeadlineExceeded)
		if why, ok = errors.AsType[*NotReady](h.ready(time.Now(), nil)); !ok || why.Kind() != buffer.NotReadyDatabase {
			t.Errorf("%s: without a lock readiness is %v", name, why)
		}
	}
}
