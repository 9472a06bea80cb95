package pipeline

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outboxrelay/relay/sink"
)

// answers shows what the sink says of its answers. It is safe for concurrent use.
type answers struct {
	mu  sync.Mutex
	now []sink.Notice
	// reported is set once a report has had notices of events that count as delivered, until none holds.
	reported bool
}

// noticeAnswers logs each new notice of the sink once, and shows those that hold. It returns after the first notice of events that count as delivered is written:
// once they are deleted nothing else says which they were.
func (p *Pipeline) noticeAnswers() {
	noticer, ok := p.sink.(sink.Noticer)
	if !ok {
		return
	}
	if p.updateAnswers(noticer) {
		p.reportNow()
		p.answers.mu.Lock()
		defer p.answers.mu.Unlock()
		p.answers.reported = true
	}
}

// updateAnswers reports whether notices of events that count as delivered are yet to be reported.
func (p *Pipeline) updateAnswers(noticer sink.Noticer) (urgent bool) {
	a := &p.answers
	a.mu.Lock()
	defer a.mu.Unlock()
	now := noticer.Notices()
	settled := slices.ContainsFunc(now, func(n sink.Notice) bool { return n.Settled })
	a.reported = a.reported && settled
	if slices.Equal(now, a.now) {
		return settled && !a.reported
	}
	var passing, lasting []string
	for _, n := range now {
		text := "the sink " + n.Text
		if !slices.Contains(a.now, n) {
			p.config.Log.Warn(text)
		}
		if n.Settled {
			lasting = append(lasting, text)
		} else {
			passing = append(passing, text)
		}
	}
	a.now = now
	p.notices.set(answersKey, strings.Join(passing, "; "))
	p.notices.setAnswers(lasting)
	return settled && !a.reported
}

// reportNow returns when a report is written that has what was noticed before, or after reportTimeout.
func (p *Pipeline) reportNow() {
	over := time.After(reportTimeout)
	done := make(chan struct{})
	select {
	case p.reports <- done:
	case <-over:
		return
	}
	select {
	case <-done:
	case <-over:
	}
}
