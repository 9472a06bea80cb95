package console

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
)

const (
	// freshFor is how old a report may be to count as a new one: an open overview makes one a second.
	freshFor = 3 * liveEvery / 2
	// freshWithin is how long the overview waits for a new report before it shows what is known, which the live stream corrects: the last one, or the names of
	// the pipelines. It does not wait at all for a newer one if the last one took longer: reading those of many pipelines would also slow down the page.
	freshWithin = 60 * time.Millisecond
	// shownFor is how old the last report may be to be shown. The sampler makes one every hourStep, and each may take some seconds; where none runs, the pages
	// read one.
	shownFor = 3 * hourStep
)

// latest is the last report, of the sampler or of a page. It is safe for concurrent use.
type latest struct {
	mu      sync.Mutex
	report  *admin.Report // nil: there is none; not changed any more
	at      time.Time     // when it was asked for
	took    time.Duration
	changes int            // of users
	stale   map[string]int // the pipelines that a user changed since they were read, and with which change
	renewed chan struct{}  // closed when there is a new one

	reading map[string]reading // what is read for pages, by pipeline; "" is all of them
	readers sync.WaitGroup
	closing chan struct{} // closed when nothing more is read for pages
}

// reading is a report that a page reads.
type reading struct {
	change int           // the user's change that it is read after
	done   chan struct{} // closed when it is there
}

func newLatest() *latest {
	return &latest{renewed: make(chan struct{}), stale: map[string]int{}, reading: map[string]reading{}, closing: make(chan struct{})}
}

// begin is called before a report is read for put.
func (l *latest) begin() (changes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes
}

// put keeps a report of all pipelines that was asked for at a time, after so many changes.
func (l *latest) put(report *admin.Report, at time.Time, changes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.Before(l.at) { // a page has read a later one
		return
	}
	for name, change := range l.stale {
		if change <= changes {
			delete(l.stale, name)
		}
	}
	l.report, l.at, l.took = report, at, time.Since(at)
	close(l.renewed)
	l.renewed = make(chan struct{})
}

// putOne keeps a report of one pipeline, which was read after so many changes.
func (l *latest) putOne(name string, one *admin.Report, changes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if change, stale := l.stale[name]; !stale || change > changes || l.report == nil {
		return
	}
	delete(l.stale, name)
	l.report = without(l.report, map[string]int{name: 0})
	l.report.Pipelines = append(l.report.Pipelines, one.Pipelines...)
	l.report.Errors = append(l.report.Errors, one.Errors...)
}

// without is a copy of a report without some pipelines.
func without(report *admin.Report, names map[string]int) *admin.Report {
	left := &admin.Report{Pipelines: make([]admin.PipelineReport, 0, len(report.Pipelines))}
	for i := range report.Pipelines {
		if _, out := names[report.Pipelines[i].Name]; !out {
			left.Pipelines = append(left.Pipelines, report.Pipelines[i])
		}
	}
	for _, e := range report.Errors {
		if _, out := names[e.Name]; !out {
			left.Errors = append(left.Errors, e)
		}
	}
	return left
}

// change says that a user changed a pipeline: the next page must not show what was before.
func (l *latest) change(pipeline string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changes++
	l.stale[pipeline] = l.changes
}

// unread returns the pipelines of which no report may be shown, with the user's change that made them so; all: none of any.
func (l *latest) unread() (changed map[string]int, all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.stale), l.report == nil || time.Since(l.at) > shownFor
}

// shown returns what may be shown of the last report, which may be nothing.
func (l *latest) shown() (report *admin.Report, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.report == nil || time.Since(l.at) > shownFor {
		return &admin.Report{}, time.Now()
	}
	if len(l.stale) == 0 {
		return l.report, l.at
	}
	return without(l.report, l.stale), l.at
}

// read calls act in the background to read one pipeline after a user's change, or all of them (""), unless that is under way for another page. It returns a channel
// that is closed when it is done. The context of act has the values of ctx, but ends only with close.
func (l *latest) read(ctx context.Context, name string, change int, act func(ctx context.Context)) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now, ok := l.reading[name]; ok && now.change >= change {
		return now.done
	}
	one := reading{change: change, done: make(chan struct{})}
	if l.isClosing() {
		close(one.done)
		return one.done
	}
	l.reading[name] = one
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.readers.Go(func() {
		defer cancel()
		defer close(one.done)
		act(ctx)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.reading[name] == one { // otherwise a later change is read
			delete(l.reading, name)
		}
	})
	l.readers.Go(func() {
		select {
		case <-l.closing:
			cancel()
		case <-one.done:
		}
	})
	return one.done
}

func (l *latest) isClosing() bool {
	select {
	case <-l.closing:
		return true
	default:
		return false
	}
}

// close ends what is read for pages, and waits for it; then nothing more is. It must be called once.
func (l *latest) close() {
	l.mu.Lock()
	close(l.closing)
	l.mu.Unlock()
	l.readers.Wait()
}

// get returns the last report; renewed is nil if the next one would take too long to wait for it.
func (l *latest) get() (report *admin.Report, at time.Time, renewed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.took > freshWithin {
		return l.report, l.at, nil
	}
	return l.report, l.at, l.renewed
}

// changed says that a user changed a pipeline.
func (s *Console) changed(pipeline string) {
	s.config.Source.Changed(pipeline)
	s.latest.change(pipeline)
	s.live.wakeUp()
}

// report returns what is known for the overview, and when it was asked for. The databases of many pipelines take longer than a page should: then it is the
// last report, which is a few seconds old, without the pipelines that have none yet or that a user has just changed. Those are read meanwhile, for the live
// stream and for the next page.
func (s *Console) report(ctx context.Context) (*admin.Report, time.Time) {
	if changed, all := s.latest.unread(); all || len(changed) > 0 {
		limited, cancel := context.WithTimeout(ctx, freshWithin)
		defer cancel()
		for _, done := range s.readFor(ctx, changed, all) {
			await(limited, done)
		}
		return s.latest.shown()
	}
	last, at, renewed := s.latest.get()
	if time.Since(at) < freshFor || renewed == nil {
		return last, at
	}
	s.live.wakeUp()
	limited, cancel := context.WithTimeout(ctx, freshWithin)
	defer cancel()
	await(limited, renewed)
	return s.latest.shown()
}

// readFor reads the pipelines that users changed, or all, for the page of a request, which does not wait for the end. A report takes a few seconds at most.
func (s *Console) readFor(ctx context.Context, changed map[string]int, all bool) (done []<-chan struct{}) {
	if all {
		return append(done, s.latest.read(ctx, "", 0, func(ctx context.Context) {
			changes, now := s.latest.begin(), time.Now()
			if report := s.config.Source.Report(ctx); ctx.Err() == nil {
				s.latest.put(&report, now, changes)
			}
		}))
	}
	for name, change := range changed {
		done = append(done, s.latest.read(ctx, name, change, func(ctx context.Context) {
			changes := s.latest.begin()
			if report := s.config.Source.Report(ctx, name); ctx.Err() == nil {
				s.latest.putOne(name, &report, changes)
			}
		}))
	}
	return done
}

// await waits until a channel is closed or ctx is done.
func await(ctx context.Context, done <-chan struct{}) {
	select {
	case <-done:
	case <-ctx.Done():
	}
}
