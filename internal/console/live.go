package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// live sends the browsers what changed on the overview. It is safe for concurrent use.
type live struct {
	// wake has one token when the first browser comes.
	wake chan struct{}

	mu       sync.Mutex
	watchers int
	closed   bool
	parts    map[string]string // the HTML of each element of the overview, by its id
	changed  chan struct{}     // closed when parts change
	since    map[string]time.Time
}

func newLive() *live {
	return &live{wake: make(chan struct{}, 1), changed: make(chan struct{}), since: map[string]time.Time{}}
}

func (l *live) watched() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watchers > 0
}

// publish replaces the parts.
func (l *live) publish(parts map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parts = parts
	close(l.changed)
	l.changed = make(chan struct{})
}

// close ends all connections.
func (l *live) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	close(l.changed)
	l.changed = make(chan struct{})
}

// observe remembers since when there are problems.
func (l *live) observe(now time.Time, all []problem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	since := make(map[string]time.Time, len(all))
	for i := range all {
		key := all[i].key()
		if at, known := l.since[key]; known {
			since[key] = at
		} else {
			since[key] = now
		}
	}
	l.since = since
}

// setSince sets since when there are problems; now for those that were not observed yet.
func (l *live) setSince(now time.Time, all []problem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range all {
		all[i].Since = now
		if at, known := l.since[all[i].key()]; known {
			all[i].Since = at
		}
	}
}

const (
	// liveKeepAlive is how often a connection without changes gets a comment, so that proxies keep it.
	liveKeepAlive = 15 * time.Second
	liveTimeout   = 10 * time.Second
)

// serveLive sends server-sent events: a JSON object with the elements of the overview that changed, by id; null for one that is gone.
func (s *Console) serveLive(w http.ResponseWriter, r *http.Request) {
	l := s.live
	l.mu.Lock()
	l.watchers++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		if l.watchers--; l.watchers == 0 {
			l.parts = nil // the next browser must not see what is old by then
		}
		l.mu.Unlock()
	}()
	select {
	case l.wake <- struct{}{}:
	default:
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // there are servers without deadlines
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	keepAlive := time.NewTicker(liveKeepAlive)
	defer keepAlive.Stop()
	sent := map[string]string{}
	send := func(text []byte) bool {
		_ = control.SetWriteDeadline(time.Now().Add(liveTimeout))
		if _, err := w.Write(text); err != nil {
			return false
		}
		return control.Flush() == nil
	}
	if !send([]byte("retry: 2000\n\n")) {
		return
	}
	for {
		l.mu.Lock()
		parts, changed, closed := l.parts, l.changed, l.closed
		l.mu.Unlock()
		if closed {
			return
		}
		if text := diff(sent, parts); text != nil && !send(text) {
			return
		}
		if _, ok := s.config.Guard.User(r); !ok { // the session is over
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		case <-keepAlive.C:
			if !send([]byte(": \n\n")) {
				return
			}
		}
	}
}

// diff returns an event with what changed since sent, which it updates; nil if nothing did.
func diff(sent, parts map[string]string) []byte {
	changes := map[string]any{}
	for id, html := range parts {
		if was, known := sent[id]; !known || was != html {
			changes[id] = html
			sent[id] = html
		}
	}
	for id := range sent {
		if _, still := parts[id]; !still && parts != nil {
			changes[id] = nil
			delete(sent, id)
		}
	}
	if len(changes) == 0 {
		return nil
	}
	text, err := json.Marshal(changes)
	if err != nil { // cannot happen
		return nil
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "data: %s\n\n", text)
	return b.Bytes()
}
