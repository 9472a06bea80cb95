package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Pipeline is a pipeline on the admin endpoint.
type Pipeline struct {
	Name   string
	Health Health
	// Database is the server of the buffer, and Server that of a single sink, as scheme://host, or as the whole URL of a file. Problems of one server are one
	// problem for people; "": they are compared by their texts only.
	Database, Server string
	// Inspector is the pipeline's buffer; nil: it is not asked why nothing is sent.
	Inspector buffer.Inspector
	// MaxWaiting is how many batches may wait before claiming stops.
	MaxWaiting int
	// Scheduled reports whether events wait for a schedule of the pipeline's own.
	Scheduled bool
	// Sinks are the configured ones of several, and Router is ready while events are routed to them; nil for a single sink.
	Sinks  []Sink
	Router Readiness
	// RetryNow makes every waiting batch due.
	RetryNow func(ctx context.Context) (Retried, error)
	// Pauser pauses and resumes the pipeline and its sinks; nil if it cannot be paused.
	Pauser buffer.Pauser
	// Archive knows the size of the archive; nil: there is none.
	Archive buffer.Retention
	// Batches are the live batches.
	Batches buffer.LiveBatches
	DeadLetters
}

// Locker returns the oldest transaction that holds locks in the event table, or that one with such locks waits for; holds reports the former. See [buffer.Locker].
func (p *Pipeline) Locker() (h buffer.VacuumBlocker, holds, ok bool) {
	if o, can := p.Health.(lockObserver); can {
		return o.Locker()
	}
	return h, false, false
}

// LocksSeenAt is when this process last looked for locks, by its clock; zero if it does not look, or could not.
func (p *Pipeline) LocksSeenAt() time.Time {
	if o, ok := p.Health.(lockObserver); ok {
		return o.LocksSeenAt()
	}
	return time.Time{}
}

// TableLocker returns the oldest transaction that has locked one of the pipeline's tables as a whole; nil if none has. See [buffer.TableLocker].
func (p *Pipeline) TableLocker() *buffer.LockedError {
	if o, ok := p.Health.(lockObserver); ok {
		return o.TableLocker()
	}
	return nil
}

// tableLocked reports whether a transaction has locked one of the pipeline's tables as a whole, and whether that is known. err is of reading its status.
func (p *Pipeline) tableLocked(err error) (locked, known bool) {
	if _, locked = errors.AsType[*buffer.LockedError](err); locked || p.TableLocker() != nil {
		return true, true
	}
	o, ok := p.Health.(lockObserver)
	return false, err == nil && (!ok || o.LocksKnown())
}

// Sink is one of several sinks of a pipeline.
type Sink struct {
	Name   string
	Health SinkHealth
	Server string // as that of a single sink in Pipeline
}

// Readiness tells whether progress is made. It is safe for concurrent use.
type Readiness interface {
	// Ready returns nil, or why no progress is made. errors.As finds a classified error in it.
	Ready() error
}

// SinkHealth is the state of one of several sinks. Its methods are safe for concurrent use.
type SinkHealth interface {
	Readiness
	// Limits are the current batch size and number of workers.
	Limits() (batchSize, workers int)
}

// Health is the state of a pipeline. Its methods are safe for concurrent use.
type Health interface {
	SinkHealth
	Status(ctx context.Context) (buffer.Status, error)
	// Worst returns the oldest transaction that blocks vacuum in its database, if
	// it is old enough for a warning.
	Worst() (buffer.VacuumBlocker, bool)
}

// lockObserver is a [Health] that knows of locks in the event table.
type lockObserver interface {
	// Locker returns the oldest transaction that holds locks in the event table, or that one with such locks waits for; holds reports the former. See [buffer.Locker].
	Locker() (h buffer.VacuumBlocker, holds, ok bool)
	// LocksSeenAt is when that was looked for, by the clock of this process; zero if it is not, or could not be.
	LocksSeenAt() time.Time
	// TableLocker returns the oldest transaction that has locked one of the pipeline's tables as a whole; nil if none has. See [buffer.TableLocker].
	TableLocker() *buffer.LockedError
	// LocksKnown reports whether TableLocker knows all locks.
	LocksKnown() bool
}

// statuses are those of the sinks, and of what is not routed yet; of the configured sinks alone if the status is unknown.
func (p *Pipeline) statuses(s *buffer.Status) []buffer.SinkStatus {
	if s.Sinks != nil {
		return s.Sinks
	}
	var all []buffer.SinkStatus
	for _, one := range p.Sinks {
		all = append(all, buffer.SinkStatus{Name: one.Name})
	}
	return append(all, buffer.SinkStatus{Name: buffer.Unrouted})
}

// classified is an error with a class that says nothing about events.
type classified interface {
	error
	Class() string
	Kind() string
}

const (
	// maxStatusAge is how long a status is reused, so that requests do not load the database.
	maxStatusAge = time.Second
	// statusTimeout is how long a database may take to respond. It is less than the
	// default scrape timeout of Prometheus (10 s).
	statusTimeout = 3 * time.Second
)

// snapshot is a pipeline's latest status.
type snapshot struct {
	pipeline Pipeline
	// semaphore has one token; the goroutine that has it may query the database and owns the fields below.
	semaphore chan struct{}
	// changed: the latest status may be of before a change that a user made.
	changed atomic.Bool
	archive slow[buffer.ArchiveSize]
	left    slow[int64]
	// locked is why the latest status could not be read, if a transaction has locked a table; otherwise nil.
	locked atomic.Pointer[buffer.LockedError]

	at     time.Time
	status buffer.Status
	// unsendable is why nothing is sent although the status could be read.
	unsendable, err error
}

func newSnapshot(p Pipeline) *snapshot {
	s := &snapshot{pipeline: p, semaphore: make(chan struct{}, 1)}
	s.semaphore <- struct{}{}
	return s
}

// read returns a status no older than maxStatusAge. It takes at most statusTimeout, and
// concurrent calls share a query.
func (s *snapshot) read(ctx context.Context) (status buffer.Status, unsendable, err error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	select {
	case <-s.semaphore:
	case <-ctx.Done():
		if locked := s.locked.Load(); locked != nil {
			return buffer.Status{}, nil, locked
		}
		return buffer.Status{}, nil, timeoutError(ctx.Err())
	}
	defer func() { s.semaphore <- struct{}{} }()
	if changed := s.changed.Swap(false); changed || s.at.IsZero() || time.Since(s.at) > maxStatusAge {
		status, err := s.pipeline.Health.Status(ctx)
		if errors.Is(ctx.Err(), context.Canceled) { // by the client, so it says nothing about the database
			if changed {
				s.changed.Store(true)
			}
			return status, nil, err
		}
		if s.unsendable = nil; err == nil {
			s.unsendable = s.pipeline.unsendable(ctx)
		}
		locked, _ := errors.AsType[*buffer.LockedError](err)
		s.locked.Store(locked)
		if locked == nil { // otherwise it does respond
			err = timeoutError(err)
		}
		s.status, s.err, s.at = status, err, time.Now()
	}
	return s.status, s.unsendable, s.err
}

func timeoutError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the database did not respond within %v: %w", statusTimeout, err)
	}
	return err
}

// snapshots are those of all pipelines, in order.
type snapshots []*snapshot

// named are the snapshots of some pipelines; all if there are no names.
func (all snapshots) named(names []string) (some snapshots) {
	if len(names) == 0 {
		return all
	}
	for _, s := range all {
		if slices.Contains(names, s.pipeline.Name) {
			some = append(some, s)
		}
	}
	return some
}

const (
	// readsAtOnce is how many snapshots are read at once: those of many SQLite files would keep all processors busy for a second, and with them the pages and
	// the events. One that takes longer than slowRead counts no more, because it waits for its database.
	readsAtOnce = 8
	slowRead    = 20 * time.Millisecond
)

// each reads all snapshots concurrently, so that a slow database delays no other for long, and
// then calls visit for each in order.
func (all snapshots) each(ctx context.Context, visit func(p Pipeline, s buffer.Status, unsendable, err error)) {
	type result struct {
		status          buffer.Status
		unsendable, err error
	}
	results := make([]result, len(all))
	var wait sync.WaitGroup
	slots := make(chan struct{}, readsAtOnce)
	for i, s := range all {
		slots <- struct{}{}
		free := sync.OnceFunc(func() { <-slots })
		slow := time.AfterFunc(slowRead, free)
		wait.Go(func() {
			defer free()
			defer slow.Stop()
			results[i].status, results[i].unsendable, results[i].err = s.read(ctx)
		})
	}
	wait.Wait()
	for i, s := range all {
		visit(s.pipeline, results[i].status, results[i].unsendable, results[i].err)
	}
}
