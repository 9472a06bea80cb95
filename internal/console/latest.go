package console

import (
	"context"
	"sync"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
)

const (
	// freshFor is how old a report may be to count as a new one: an open overview makes one a second.
	freshFor = 3 * liveEvery / 2
	// freshWithin is how long the overview waits for a new report before it shows the last one, which the live stream corrects. It does not wait at all if the
	// last one took longer: reading those of many pipelines would also slow down the page.
	freshWithin = 60 * time.Millisecond
	// shownFor is how old the last report may be to be shown. The sampler makes one every hourStep, and each may take some seconds; where none runs, each page
	// reads one.
	shownFor = 3 * hourStep
)

// latest is the last report of the sampler. It is safe for concurrent use.
type latest struct {
	mu      sync.Mutex
	report  *admin.Report // nil: there is none, or a user changed something since
	at      time.Time     // when it was asked for
	took    time.Duration
	changes int
	renewed chan struct{} // closed when there is a new one
}

func newLatest() *latest { return &latest{renewed: make(chan struct{})} }

// begin is called before a report is read for put.
func (l *latest) begin() (changes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes
}

// put keeps a report that was asked for at a time, unless a user changed something while it was read.
func (l *latest) put(report *admin.Report, at time.Time, changes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if changes != l.changes {
		return
	}
	l.report, l.at, l.took = report, at, time.Since(at)
	close(l.renewed)
	l.renewed = make(chan struct{})
}

// forget says that a user changed something: the next page must show it.
func (l *latest) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report = nil
	l.changes++
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
	s.latest.forget()
	s.live.wakeUp()
}

// report returns a report for the overview, and when it was asked for. The databases of many pipelines take longer than a page should: then it is the last
// one, which is a few seconds old.
func (s *Console) report(ctx context.Context) (*admin.Report, time.Time) {
	last, at, renewed := s.latest.get()
	if last == nil || time.Since(at) > shownFor {
		now := time.Now()
		report := s.config.Source.Report(ctx)
		return &report, now
	}
	if time.Since(at) < freshFor || renewed == nil {
		return last, at
	}
	s.live.wakeUp()
	timer := time.NewTimer(freshWithin)
	defer timer.Stop()
	select {
	case <-renewed:
		if newer, newerAt, _ := s.latest.get(); newer != nil {
			return newer, newerAt
		}
	case <-timer.C:
	case <-ctx.Done():
	}
	return last, at
}
