package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/robfig/cron/v3"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
)

// fakeBuffer is a buffer and a sink whose backlog, batches and answers the test sets,
// for what takes minutes.
type fakeBuffer struct {
	mu      sync.Mutex
	backlog buffer.Backlog
	batch   buffer.Lease // what each claim and take over brings; without events: nothing
	answer  error        // of Send
	settled error        // of Settle
	settles int
	check   error // of Check, as a buffer and as a sink
	checks  int
}

// counted returns how often Check was called.
func (s *fakeBuffer) counted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checks
}

func (s *fakeBuffer) set(change func(*fakeBuffer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *fakeBuffer) CountBacklog(_ context.Context, limit int) (buffer.Backlog, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.backlog
	b.Unclaimed = min(b.Unclaimed, limit)
	return b, nil
}

func (s *fakeBuffer) lease(lease time.Duration) (*buffer.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.batch.Events) == 0 {
		return nil, nil
	}
	b := s.batch
	if b.GroupID == uuid.Nil {
		b.GroupID = buffer.NewGroupID()
	}
	b.LeaseNo, b.Ends = 1, time.Now().Add(lease)
	return &b, nil
}

func (s *fakeBuffer) Claim(_ context.Context, _ int, lease time.Duration) (*buffer.Lease, error) {
	return s.lease(lease)
}

func (s *fakeBuffer) TakeOver(_ context.Context, lease time.Duration, _ buffer.Due) (*buffer.Lease, error) {
	return s.lease(lease)
}

func (s *fakeBuffer) Read(context.Context, *buffer.Lease) error { return nil }

func (s *fakeBuffer) Send(context.Context, *buffer.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answer
}

// Settle takes its time, for the parts of a batch are due at once, and the clock
// of a bubble advances only while all goroutines wait.
func (s *fakeBuffer) Settle(context.Context, *buffer.Lease, []buffer.Outcome) error {
	<-time.After(500 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settles++
	return s.settled
}

func (s *fakeBuffer) Renew(context.Context, *buffer.Lease, time.Duration) error   { return nil }
func (s *fakeBuffer) MarkDelivered(context.Context, *buffer.Lease, []int64) error { return nil }
func (s *fakeBuffer) DeferredAddresses(context.Context) ([]string, error)         { return nil, nil }
func (s *fakeBuffer) RetryNow(context.Context, string, int) (int, error)          { return 0, nil }
func (s *fakeBuffer) RetryRefused(context.Context) (int, error)                   { return 0, nil }
func (s *fakeBuffer) RetryAll(context.Context, string) (int, error)               { return 0, nil }
func (s *fakeBuffer) RetryRequest(context.Context) (string, error)                { return "", nil }
func (s *fakeBuffer) Status(context.Context) (buffer.Status, error)               { return buffer.Status{}, nil }
func (s *fakeBuffer) Close() error                                                { return nil }

func (s *fakeBuffer) Check(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checks++
	return s.check
}

// start runs a pipeline on the fake buffer, within a synctest bubble.
func (s *fakeBuffer) start(t *testing.T, change func(*pipeline.Config)) *process {
	t.Helper()
	return start(t, s, s, func(c *pipeline.Config) {
		c.Schedule = cron.Every(time.Second)
		if change != nil {
			change(c)
		}
	})
}

// after lets so much time pass.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func expectReadiness(t *testing.T, p *process, when, want string) {
	t.Helper()
	switch err := p.Ready(); {
	case want == "" && err != nil:
		t.Errorf("%s: not ready: %v", when, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: readiness is %v, want an error that says %q", when, err, want)
	}
}

func three() buffer.Lease {
	return buffer.Lease{Batch: buffer.Batch{Events: []outbox.Event{{ID: 1}, {ID: 2}, {ID: 3}}}, FirstID: 1, LastID: 3}
}

// each refuses events one by one; nil errors are left out.
func each(errs ...error) error {
	refused := &sink.BatchError{}
	for i, err := range errs {
		if err != nil {
			refused.Events = append(refused.Events, sink.EventError{Index: i, Err: err})
		}
	}
	return refused
}

// Readiness depends on progress: a batch that is only put back is none.
func TestHealth_Stalled(t *testing.T) {
	t.Parallel()
	const stalled, nothingThrough, refusing = "stalled: events wait", "sends in a row delivered nothing", "refusing: the sink refuses"
	down, marked := sink.Unavailable(errTest), three()
	marked.Delivered = []int64{1, 2, 3}
	for name, c := range map[string]struct {
		batch  buffer.Lease
		answer error
		want   string
	}{
		"claims that bring nothing":   {buffer.Lease{}, nil, stalled},
		"all put back, address down":  {three(), each(down, down, down), nothingThrough},
		"all put back, refused":       {three(), each(errTest, errTest, errTest), stalled},
		"delivered":                   {three(), nil, ""},
		"one delivered":               {three(), each(down, nil, down), ""},
		"one buried":                  {three(), each(down, sink.Permanent(errTest), down), ""},
		"all refused for good":        {three(), each(sink.Permanent(errTest), sink.Permanent(errTest), sink.Permanent(errTest)), refusing},
		"halved":                      {three(), errTest, stalled},
		"split":                       {three(), &sink.SplitError{Groups: []sink.Group{{Indexes: []int{0, 1}}, {Indexes: []int{2}}}}, ""},
		"marked, and deleted at last": {marked, down, ""},
	} {
		for backlog, waits := range map[string]buffer.Backlog{"fresh": {Unclaimed: 1, Waiting: 1}, "due": {Due: 1, Waiting: 1}} {
			t.Run(name+"/"+backlog, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := &fakeBuffer{batch: c.batch, answer: c.answer, backlog: waits}
					p := s.start(t, nil)
					after(59 * time.Second)
					if c.want != nothingThrough && c.want != refusing { // which are seen at once
						expectReadiness(t, p, "before a minute is over", "")
					}
					after(3 * time.Second)
					expectReadiness(t, p, "after a minute", c.want)
					after(3 * time.Minute)
					expectReadiness(t, p, "after four minutes", c.want)
					s.set(func(s *fakeBuffer) {
						if (s.settles == 0) != (len(s.batch.Events) == 0) {
							t.Errorf("%d batches were settled", s.settles)
						}
						s.batch, s.answer = three(), nil
						if c.want == refusing { // one event of a batch is tried, and this buffer does not divide
							s.batch.Events, s.batch.LastID = s.batch.Events[:1], 1
						}
					})
					after(2 * time.Second)
					expectReadiness(t, p, "when events are delivered", "")
				})
			})
		}
	}
}

// A pipeline without due events is not stalled. Neither is one whose batch is not due yet, however
// late fresh events are counted next.
func TestHealth_NothingToDo(t *testing.T) {
	t.Parallel()
	for name, schedule := range map[string]cron.Schedule{"every second": cron.Every(time.Second), "nightly": cron.Every(24 * time.Hour)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &fakeBuffer{batch: three(), answer: each(errTest, errTest, errTest), backlog: buffer.Backlog{Due: 1}}
				p := s.start(t, func(c *pipeline.Config) { c.Schedule = schedule })
				after(30 * time.Second)
				s.set(func(s *fakeBuffer) { s.backlog = buffer.Backlog{Waiting: 1} })
				after(10 * time.Minute)
				expectReadiness(t, p, "while it waits for its time", "")
				s.set(func(s *fakeBuffer) { s.backlog.Due = 1 })
				after(2 * time.Minute)
				expectReadiness(t, p, "when it is due and due again", "stalled")
			})
		})
	}
}

func TestHealth_NamesMaxWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &lockedBuffer{}
		s := &fakeBuffer{backlog: buffer.Backlog{Unclaimed: 5, Waiting: 2, Delivered: 1}}
		p := s.start(t, func(c *pipeline.Config) { c.MaxWaiting, c.Log = 3, logInto(t, log) })
		after(3 * time.Second)
		expectReadiness(t, p, "with three that wait or are marked", "claiming stopped: 3 batches wait for a retry or a delete, max_waiting is 3")
		testkit.Equal(t, "warnings", log.count("claiming stopped"), 1)
		s.set(func(s *fakeBuffer) { s.backlog.Unclaimed = 0 })
		after(2 * time.Second)
		expectReadiness(t, p, "with nothing fresh", "")
		s.set(func(s *fakeBuffer) { s.backlog.Unclaimed = 5 })
		after(2 * time.Second)
		expectReadiness(t, p, "with fresh events again", "max_waiting")
		s.set(func(s *fakeBuffer) { s.backlog.Delivered, s.batch = 0, three() })
		after(20 * time.Second)
		expectReadiness(t, p, "with room again", "")
		testkit.Equal(t, "messages about resuming", log.count("claiming resumed"), 1)
		testkit.Equal(t, "warnings", log.count("claiming stopped"), 1)
	})
}

// TestHealth_AddressOutage: of an outage of addresses, too, readiness says what kind it is.
func TestHealth_AddressOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		full := sink.Unavailable(sink.Full(errTest))
		s := &fakeBuffer{batch: three(), answer: each(full, full, full), backlog: buffer.Backlog{Due: 1, Waiting: 1}}
		p := s.start(t, nil)
		after(5 * time.Second)
		expectReadiness(t, p, "while it is full", "sink: ")
		expectReadiness(t, p, "while it is full", "sends in a row delivered nothing, the last: "+errTest.Error())
		if err := p.Ready(); !errors.Is(err, sink.ErrFull) {
			t.Errorf("readiness is %v, want an error that is %v", err, sink.ErrFull)
		}
	})
}

// TestHealth_Starting: until the first check of the database has ended, that is all that readiness says.
func TestHealth_Starting(t *testing.T) {
	t.Parallel()
	p, err := pipeline.New(&fakeBuffer{}, &fakeBuffer{}, pipeline.Config{Name: "orders"})
	testkit.NoError(t, err)
	why, ok := errors.AsType[*pipeline.NotReady](p.Ready())
	if !ok || why.Kind() != buffer.KindStarting || why.Class() != buffer.NotReadyDatabase {
		t.Errorf("readiness is %v of kind %q", why, why.Kind())
	}
}

// TestHealth_StuckBatch: an outage that keeps hitting one batch while others are delivered.
func TestHealth_StuckBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &fakeBuffer{}
		p := s.start(t, nil)
		try := func(batch buffer.Lease, answer error) {
			s.set(func(s *fakeBuffer) { s.batch, s.answer, s.backlog = batch, answer, buffer.Backlog{Due: 1, Waiting: 1} })
			after(time.Second)
			s.set(func(s *fakeBuffer) { s.batch, s.backlog = buffer.Lease{}, buffer.Backlog{Waiting: 1} })
			after(10 * time.Second)
		}
		bad := three()
		bad.GroupID = buffer.NewGroupID()
		outage := func() {
			try(bad, sink.Unavailable(errTest))
			bad.Outages++
		}
		for range 8 { // of all batches
			outage()
		}
		for range 3 {
			try(three(), nil)
			expectReadiness(t, p, "after a delivery", "")
			outage()
		}
		for range 4 {
			expectReadiness(t, p, "after three outages between deliveries", "stalled: 1 batch is not accepted while others are; batch "+bad.GroupID.String())
			if why, ok := errors.AsType[*pipeline.NotReady](p.Ready()); !ok || why.Kind() != buffer.KindStuck || why.Class() != "stalled" {
				t.Errorf("its kind is %v", why)
			}
			expectReadiness(t, p, "the reason", errTest.Error())
			try(three(), nil)
		}
		outage()
		try(three(), nil)
		expectReadiness(t, p, "after another outage and a delivery", bad.GroupID.String())
		try(bad, nil)
		expectReadiness(t, p, "when it is delivered", "")

		for range 4 {
			outage()
			try(three(), nil)
		}
		expectReadiness(t, p, "stuck again", bad.GroupID.String())
		after(10 * time.Minute)
		expectReadiness(t, p, "when another process has it", "")
	})
}

// TestHealth_Unreadable: the database cannot send one event, and sends others.
func TestHealth_Unreadable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &fakeBuffer{}
		p := s.start(t, nil)
		bad := three()
		bad.GroupID, bad.Events = buffer.NewGroupID(), bad.Events[:1]
		bad.FailRead(fmt.Errorf("%w: no equivalent", buffer.ErrUnreadable), 0)
		for range 10 {
			s.set(func(s *fakeBuffer) { s.batch, s.backlog = bad, buffer.Backlog{Due: 1, Waiting: 1} })
			after(time.Second)
			s.set(func(s *fakeBuffer) { s.batch, s.backlog = three(), buffer.Backlog{Unclaimed: 3, Waiting: 1} })
			after(10 * time.Second)
			bad.Outages++
		}
		expectReadiness(t, p, "after two minutes", "stalled: 1 batch is stuck; batch "+bad.GroupID.String())
		expectReadiness(t, p, "the reason", "event "+bad.Events[0].Identity()+" cannot be read: correct its row, or delete it")
	})
}

// TestHealth_DeliveredByAnother: another relay delivers what this one could not, and nothing is left to try the sink with.
func TestHealth_DeliveredByAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &fakeBuffer{}
		p := s.start(t, nil)
		after(3 * time.Second)
		s.set(func(s *fakeBuffer) {
			s.batch, s.answer, s.backlog = three(), sink.Unavailable(errTest), buffer.Backlog{Unclaimed: 3, Waiting: 1}
		})
		after(30 * time.Second)
		expectReadiness(t, p, "while nothing is delivered", "sink: ")
		s.set(func(s *fakeBuffer) { s.batch, s.backlog = buffer.Lease{}, buffer.Backlog{Waiting: 1} })
		after(time.Minute)
		expectReadiness(t, p, "while one batch waits", "sink: ")
		s.set(func(s *fakeBuffer) { s.backlog = buffer.Backlog{} })
		after(12 * time.Second)
		expectReadiness(t, p, "when nothing waits, and the sink answers", "")
		s.set(func(s *fakeBuffer) { s.backlog = buffer.Backlog{Waiting: 1} })
		after(2 * time.Second)
		expectReadiness(t, p, "when a batch waits again", "sink: ")
	})
}

// TestHealth_SinkIsBack: a sink that is back is found so within a few seconds, also while nothing is sent, and at once if a send is accepted. One whose Check fails
// although it accepts events is not.
func TestHealth_SinkIsBack(t *testing.T) {
	t.Parallel()
	away := sink.Unavailable(errTest)
	for name, back := range map[string]func(*fakeBuffer){
		"idle":                 func(*fakeBuffer) {},
		"accepted":             func(s *fakeBuffer) { s.batch, s.backlog = three(), buffer.Backlog{Unclaimed: 3} },
		"delivered by another": func(*fakeBuffer) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &fakeBuffer{}
				p := s.start(t, nil)
				after(3 * time.Second)
				for range 10 { // whenever it is that the sink is back
					s.set(func(s *fakeBuffer) {
						s.check, s.answer, s.batch, s.backlog = away, away, buffer.Lease{}, buffer.Backlog{}
						if name == "delivered by another" {
							s.batch, s.backlog = three(), buffer.Backlog{Unclaimed: 3, Waiting: 1}
						}
					})
					after(31 * time.Second)
					expectReadiness(t, p, "while it is away", "sink: ")
					s.set(func(s *fakeBuffer) {
						s.check, s.answer, s.batch, s.backlog = nil, nil, buffer.Lease{}, buffer.Backlog{}
					})
					s.set(back)
					after(4 * time.Second)
					expectReadiness(t, p, "when it is back", "")
				}
			})
		})
	}
	t.Run("check fails", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &fakeBuffer{batch: three(), backlog: buffer.Backlog{Unclaimed: 3}}
			p := s.start(t, nil)
			after(3 * time.Second)
			s.set(func(s *fakeBuffer) { s.check = away })
			after(11 * time.Second)
			checks := s.counted()
			for range 20 {
				after(time.Second)
				expectReadiness(t, p, "while its Check fails", "sink: ")
			}
			if n := s.counted() - checks; n > 25 {
				t.Errorf("%d checks in 20 seconds", n)
			}
		})
	})
}

// An unavailable sink has another reason than a stalled pipeline.
func TestHealth_NamesTheSink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &fakeBuffer{batch: three(), answer: sink.Unavailable(errTest), backlog: buffer.Backlog{Unclaimed: 5}}
		p := s.start(t, nil)
		after(5 * time.Minute)
		if err := p.Ready(); !errors.Is(err, errTest) || !strings.HasPrefix(err.Error(), "sink: ") {
			t.Errorf("readiness is %v, want the sink's error", err)
		}
	})
}

// One batch that is sent in vain again and again is enough, and stays seen between
// two tries; one that failed once is not.
func TestHealth_NothingDelivered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &fakeBuffer{}
		p := s.start(t, nil)
		try := func(batch buffer.Lease, answer error) {
			s.set(func(s *fakeBuffer) { s.batch, s.answer, s.backlog = batch, answer, buffer.Backlog{Due: 1, Waiting: 1} })
			after(time.Second)
			s.set(func(s *fakeBuffer) { s.batch, s.backlog = buffer.Lease{}, buffer.Backlog{Waiting: 1} })
			after(20 * time.Second)
		}
		try(three(), nil)
		again := three()
		again.Outages = 1 // the sink took others since: it is not the circuit that sees it
		try(again, sink.Unavailable(errTest))
		try(again, sink.Unavailable(errTest))
		expectReadiness(t, p, "after two outages", "delivered nothing, the last: "+errTest.Error())
		try(again, nil)
		expectReadiness(t, p, "when it went through", "")
		try(again, sink.Unavailable(errTest))
		try(again, sink.Unavailable(errTest))
		expectReadiness(t, p, "after two outages more", "delivered nothing, the last: "+errTest.Error())
		try(again, each(errTest, errTest, errTest)) // to be retried
		expectReadiness(t, p, "when the sink refused the events", "")
		try(again, sink.Unavailable(errTest))
		expectReadiness(t, p, "after one outage more", "")
	})
}

// An accepted send ends an outage, whatever becomes of the deletion.
func TestHealth_DeliveredButLocked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &fakeBuffer{}
		p := s.start(t, nil)
		try := func(answer error) {
			again := three()
			again.Outages = 1 // the sink took others since: it is not the circuit that sees it
			s.set(func(s *fakeBuffer) { s.batch, s.answer, s.backlog = again, answer, buffer.Backlog{Due: 1, Waiting: 1} })
			after(time.Second)
			s.set(func(s *fakeBuffer) { s.batch, s.backlog = buffer.Lease{}, buffer.Backlog{Waiting: 1} })
			after(20 * time.Second)
		}
		try(nil)
		try(sink.Unavailable(errTest))
		try(sink.Unavailable(errTest))
		expectReadiness(t, p, "after two outages", "delivered nothing, the last: "+errTest.Error())
		s.set(func(s *fakeBuffer) { s.settled = buffer.ErrLocked })
		try(nil)
		expectReadiness(t, p, "when it was accepted, and its rows are locked", "")
	})
}

// Batches that another relay has delivered, and fresh events that a transaction has locked, are nothing that this one could try the sink with.
func TestHealth_DeliveredByAnotherButLocked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &fakeBuffer{}
		p := s.start(t, nil)
		after(3 * time.Second)
		s.set(func(s *fakeBuffer) {
			s.batch, s.answer, s.backlog = three(), sink.Unavailable(errTest), buffer.Backlog{Unclaimed: 3, Waiting: 1}
		})
		after(30 * time.Second)
		expectReadiness(t, p, "while nothing is delivered", "sink: ")
		s.set(func(s *fakeBuffer) { s.batch, s.backlog = buffer.Lease{}, buffer.Backlog{Unclaimed: 3, Delivered: 4} })
		after(25 * time.Second)
		expectReadiness(t, p, "when the rows of all that is left are locked, and the sink answers", "")
		s.set(func(s *fakeBuffer) { s.backlog = buffer.Backlog{Waiting: 1, Delivered: 4} })
		after(2 * time.Second)
		expectReadiness(t, p, "when a batch waits again", "sink: ")
	})
}
