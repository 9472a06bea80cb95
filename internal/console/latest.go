package console

import (
	"context"
	"maps"
	"slices"
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

	reading chan struct{}  // closed when the report of all pipelines is there that a page reads; nil: none does
	readers sync.WaitGroup // those that read for pages
	closed  bool           // nothing more is read for pages
}

func newLatest() *latest { return &latest{renewed: make(chan struct{}), stale: map[string]int{}} }

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

// unread returns the pipelines of which no report may be shown; all: none of any.
func (l *latest) unread() (names []string, all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.stale)), l.report == nil || time.Since(l.at) > shownFor
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

// read calls all, unless that is under way for another page, or each for some of the pipelines, and returns a channel that is closed when it is done.
func (l *latest) read(names []string, everything bool, all func(), each func(name string)) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if everything && l.reading != nil {
		return l.reading
	}
	done := make(chan struct{})
	if l.closed {
		close(done)
		return done
	}
	if everything {
		l.reading = done
	}
	l.readers.Go(func() {
		defer close(done)
		if !everything {
			for _, name := range names {
				each(name)
			}
			return
		}
		all()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.reading = nil
	})
	return done
}

// close waits for what is read for pages; then nothing more is.
func (l *latest) close() {
	l.mu.Lock()
	l.closed = true
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
	if names, all := s.latest.unread(); all || len(names) > 0 {
		s.await(ctx, s.readFor(ctx, names, all), freshWithin)
		return s.latest.shown()
	}
	last, at, renewed := s.latest.get()
	if time.Since(at) < freshFor || renewed == nil {
		return last, at
	}
	s.live.wakeUp()
	s.await(ctx, renewed, freshWithin)
	return s.latest.shown()
}

// readFor reads some pipelines, or all, for the page of a request, which does not wait for the end. A report takes a few seconds at most.
func (s *Console) readFor(ctx context.Context, names []string, all bool) (done <-chan struct{}) {
	ctx = context.WithoutCancel(ctx)
	return s.latest.read(names, all, func() {
		changes, now := s.latest.begin(), time.Now()
		report := s.config.Source.Report(ctx)
		s.latest.put(&report, now, changes)
	}, func(name string) {
		changes := s.latest.begin()
		report := s.config.Source.Report(ctx, name)
		s.latest.putOne(name, &report, changes)
	})
}

// await waits for a channel to be closed, but no longer than most.
func (s *Console) await(ctx context.Context, done <-chan struct{}, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}
