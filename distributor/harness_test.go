package distributor_test

import (
	"bytes"
	"context"
	"log/slog"
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

// midnight is when the bubbles' clock begins.
var midnight = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// schedule reads a spec as the configuration does.
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

// table is a buffer's events and batches, as far as a distributor is concerned.
type table struct {
	mu        sync.Mutex
	unclaimed int
	due       int
	waiting   int
	err       error
	hangs     bool // every look until it is cancelled
	takes     time.Duration
	looks     []seen
}

// seen is one look: when, since the bubble began, and up to how many events.
type seen struct {
	at    time.Duration
	limit int
}

func (b *table) CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looks = append(b.looks, seen{sinceMidnight(), limit})
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
	return buffer.Backlog{Unclaimed: min(limit, b.unclaimed), Due: b.due, Waiting: b.waiting}, nil
}

func (b *table) set(change func(b *table)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b)
}

// claim takes up to n events; take, one due batch.
func (b *table) claim(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n = min(n, b.unclaimed)
	b.unclaimed -= n
	return n
}

func (b *table) take() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.due == 0 {
		return 0
	}
	b.due--
	return 1
}

// looked is how often.
func (b *table) looked() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.looks)
}

// counted is when fresh events were counted.
func (b *table) counted() []time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	var at []time.Duration
	for _, l := range b.looks {
		if l.limit > 0 {
			at = append(at, l.at)
		}
	}
	return at
}

func sinceMidnight() time.Duration {
	return time.Since(midnight)
}

// bench is a distributor that runs, in a bubble.
type bench struct {
	*distributor.Distributor
	table *table
	log   *bytes.Buffer
	size  int
	stop  func()
	crews sync.WaitGroup // they end when it stops
}

// start runs a distributor with batches of 10 and, unless said otherwise, 4
// workers, 5 batches a distribution and room for 100 waiting ones.
func start(t *testing.T, spec string, b *table, change func(*distributor.Config)) *bench {
	t.Helper()
	var log bytes.Buffer
	c := distributor.Config{
		Schedule: schedule(t, spec), BatchSize: 10, MaxBatches: 5, MaxWaiting: 100, Workers: 4,
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	}
	if change != nil {
		change(&c)
	}
	d := distributor.New(b, c)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	all := &bench{Distributor: d, table: b, log: &log, size: c.BatchSize}
	all.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
		for range d.Tickets() { // handed out, and nobody took them
		}
		all.crews.Wait()
	}
	return all
}

// at waits until the bubble's clock says so and nobody is busy.
func at(d time.Duration) {
	<-time.After(d - sinceMidnight())
	synctest.Wait()
}

// waits returns the tickets that lie there for workers to take.
func (b *bench) waits() (tickets []distributor.Ticket) {
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

// use does what a worker does with a ticket, without taking any time.
func (b *bench) use(ticket distributor.Ticket) distributor.Report {
	r := distributor.Report{Ticket: ticket}
	if ticket.Due {
		r.Events = b.table.take()
	} else {
		r.Events = b.table.claim(b.size)
		r.Full = r.Events == b.size
	}
	b.Done(r)
	return r
}

// drain uses tickets until none is left, and returns the reports.
func (b *bench) drain() (reports []distributor.Report) {
	for {
		tickets := b.waits()
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

func dueOf(tickets []distributor.Ticket) (n int) {
	for _, ticket := range tickets {
		if ticket.Due {
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

// lastCount remembers what was observed last.
type lastCount struct{ err, backpressure error }

func (l *lastCount) Counted(_ buffer.Backlog, _ bool, err error) { l.err = err }
func (l *lastCount) Backpressure(err error)                      { l.backpressure = err }
