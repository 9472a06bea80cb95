package pipeline

import (
	"slices"
	"strings"
	"sync"

	"github.com/outboxrelay/relay/sink"
)

// answers shows what the sink says of its answers. It is safe for concurrent use.
type answers struct {
	mu  sync.Mutex
	now []string
}

// noticeAnswers logs each new notice of the sink once, and shows those that hold.
func (p *Pipeline) noticeAnswers() {
	noticer, ok := p.sink.(sink.Noticer)
	if !ok {
		return
	}
	a := &p.answers
	a.mu.Lock()
	defer a.mu.Unlock()
	now := noticer.Notices()
	if slices.Equal(now, a.now) {
		return
	}
	for _, text := range now {
		if !slices.Contains(a.now, text) {
			p.config.Log.Warn("the sink " + text)
		}
	}
	a.now = now
	text := strings.Join(now, "; ")
	if text != "" {
		text = "the sink " + text
	}
	p.notices.set("answers", text)
}
