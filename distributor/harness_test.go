package distributor_test

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/robfig/cron/v3"
	"go.uber.org/goleak"

	"github.com/outboxrelay/relay/distributor"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// midnight is when a synctest bubble begins.
var midnight = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// schedule parses a spec as the configuration does.
func schedule(t *testing.T, spec string) cron.Schedule {
	t.Helper()
	s, err := cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor).Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// never is 30 February.
const never = "0 0 30 2 *"

// once is a schedule of a single distribution.
type once time.Duration

func (o once) Next(now time.Time) time.Time {
	if at := midnight.Add(time.Duration(o)); at.After(now) {
		return at
	}
	return time.Time{}
}

// fakeBuffer is what a distributor sees of a buffer.
type fakeBuffer struct {
	mu          sync.Mutex
	unclaimed   int
	due         int
	unsent      int // of them
	suspects    int
	waiting     int
	availableAt time.Time // a delayed event becomes unclaimed then
	err         error
	hangs       bool // every count, until it is cancelled
	takes       time.Duration
	counts      []countCall
}

// countCall is one count: when, since midnight, and up to how many events.
type countCall struct {
	at    time.Duration
	limit int
}

func (b *fakeBuffer) CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts = append(b.counts, countCall{sinceMidnight(), limit})
	if b.hangs {
		b.mu.Unlock()
		<-ctx.Done()
		b.mu.Lock()
		return buffer.Backlog{}, ctx.Err()
	}
	if b.err != nil {
		return buffer.Backlog{}, b.err
	}
	if takes := b.takes; takes > 0 {
		b.mu.Unlock()
		<-time.After(takes)
		b.mu.Lock()
	}
	backlog := buffer.Backlog{Due: b.due, Unsent: b.unsent, Suspects: b.suspects, Waiting: b.waiting}
	switch wait := time.Until(b.availableAt); {
	case b.availableAt.IsZero() || limit == 0:
	case wait > 0:
		backlog.NextDelayed = wait
	default:
		b.unclaimed, b.availableAt = b.unclaimed+1, time.Time{}
	}
	backlog.Unclaimed = min(limit, b.unclaimed)
	return backlog, nil
}

func (b *fakeBuffer) set(change func(b *fakeBuffer)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b)
}

// claim takes up to n events; take, one due batch.
func (b *fakeBuffer) claim(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n = min(n, b.unclaimed)
	b.unclaimed -= n
	return n
}

func (b *fakeBuffer) takeSuspect() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.suspects == 0 {
		return 0
	}
	b.suspects--
	return 1
}

func (b *fakeBuffer) take() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.due == 0 {
		return 0
	}
	b.due--
	return 1
}

// countCalls returns how often the backlog was counted.
func (b *fakeBuffer) countCalls() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.counts)
}

// freshCounts returns when fresh events were counted.
func (b *fakeBuffer) freshCounts() []time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	var at []time.Duration
	for _, l := range b.counts {
		if l.limit > 0 {
			at = append(at, l.at)
		}
	}
	return at
}

func sinceMidnight() time.Duration {
	return time.Since(midnight)
}

// harness is a running distributor, in a synctest bubble.
type harness struct {
	*distributor.Distributor
	buffer  *fakeBuffer
	log     *bytes.Buffer
	size    int
	stop    func()
	workers sync.WaitGroup // they end when it stops
}

// start runs a distributor with batches of 10 and, by default, 4 workers, 5 batches a
// distribution and MaxWaiting 100.
func start(t *testing.T, spec string, b *fakeBuffer, change func(*distributor.Config)) *harness {
	t.Helper()
	var log bytes.Buffer
	c := distributor.Config{
		Schedule: schedule(t, spec), BatchSize: 10, MaxBatches: 5, MaxWaiting: 100, Workers: 4,
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	}
	if change != nil {
		change(&c)
	}
	if c.Limits == nil {
		c.Limits = func() (int, int) { return c.BatchSize, c.Workers }
	}
	if c.Allow == nil {
		c.Allow = func(context.Context) int { return math.MaxInt }
	}
	if c.Observer == nil {
		c.Observer = &lastCount{}
	}
	d := distributor.New(b, c)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	all := &harness{Distributor: d, buffer: b, log: &log, size: c.BatchSize}
	all.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
		for range d.Tickets() { // issued and not taken
		}
		all.workers.Wait()
	}
	return all
}

// waitUntil waits until that time after midnight, and until all goroutines are blocked.
func waitUntil(d time.Duration) {
	<-time.After(d - sinceMidnight())
	synctest.Wait()
}

// issued takes and returns the tickets that are issued now.
func (b *harness) issued() (tickets []distributor.Ticket) {
	synctest.Wait()
	for {
		select {
		case ticket, ok := <-b.Tickets():
			if !ok {
				return tickets
			}
			tickets = append(tickets, ticket)
			synctest.Wait()
		default:
			return tickets
		}
	}
}

// use claims with a ticket and reports, in no time.
func (b *harness) use(ticket distributor.Ticket) distributor.Report {
	r := distributor.Report{Ticket: ticket}
	switch {
	case ticket.Suspect:
		r.Events = b.buffer.takeSuspect()
	case ticket.Due:
		r.Events = b.buffer.take()
	default:
		r.Events = b.buffer.claim(b.size)
		r.Full = r.Events == b.size
		r.Cut = r.Full && b.size < ticket.BatchSize
	}
	b.Done(r)
	return r
}

// drain uses tickets until none is left, and returns the reports.
func (b *harness) drain() (reports []distributor.Report) {
	for {
		tickets := b.issued()
		if len(tickets) == 0 {
			return reports
		}
		for _, ticket := range tickets {
			reports = append(reports, b.use(ticket))
		}
	}
}

func events(reports []distributor.Report) (n int) {
	for _, r := range reports {
		n += r.Events
	}
	return n
}

func suspectsOf(tickets []distributor.Ticket) (n int) {
	for _, ticket := range tickets {
		if ticket.Suspect {
			n++
		}
	}
	return n
}

func unsentOf(tickets []distributor.Ticket) (n int) {
	for _, ticket := range tickets {
		if ticket.Due && ticket.Unsent {
			n++
		}
	}
	return n
}

func dueOf(tickets []distributor.Ticket) (n int) {
	for _, ticket := range tickets {
		if ticket.Due && !ticket.Suspect {
			n++
		}
	}
	return n
}

func expect[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%v after midnight: %s: got %v, want %v", sinceMidnight(), what, got, want)
	}
}

// lastCount is an Observer that keeps the last results.
type lastCount struct{ err, backpressure error }

func (l *lastCount) Counted(_ buffer.Backlog, _ bool, err error) { l.err = err }
func (l *lastCount) Backpressure(err error)                      { l.backpressure = err }
