package console

import (
	"bytes"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// live sends the browsers what changed on the overview. It is safe for concurrent use.
type live struct {
	// wake has one token when a browser comes, or a page wants a new report.
	wake chan struct{}

	mu       sync.Mutex
	watchers int
	closed   bool
	parts    map[string]string   // the HTML of each element of the overview, by its id; not changed any more
	version  int                 // of the parts
	event    []byte              // what changed from the version before: most browsers have that one
	changed  chan struct{}       // closed when parts change
	since    map[string]sighting // of problems, by key
}

// sighting is since when there is a problem, when it was last seen, and whether it flickers: a sink that refuses one topic of several refuses nothing for moments.
type sighting struct {
	since, last time.Time
	flickers    bool
	of          transaction // the last one that was the cause
}

// sameWithin is how soon a problem that flickers is the same when it is back. Another one that was not seen for overAfter is over, and a new one when it is back.
const (
	sameWithin = 30 * time.Second
	overAfter  = 5 * time.Second
)

func newLive() *live {
	return &live{wake: make(chan struct{}, 1), changed: make(chan struct{}), since: map[string]sighting{}}
}

// wakeUp lets the sampler read a report at once.
func (l *live) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
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
	l.event = changes(l.parts, parts)
	l.parts = parts
	l.version++
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
	present := make(map[string]bool, len(all))
	for i := range all {
		present[all[i].key()] = true
	}
	for key, seen := range l.since {
		within := sameWithin
		if !present[key] && !seen.flickers {
			within = overAfter
		}
		if now.Sub(seen.last) > within {
			delete(l.since, key)
		}
	}
	for i := range all {
		key := all[i].key()
		seen, known := l.since[key]
		if of := all[i].Of; !known || of.isOther(seen.of) {
			seen.since, seen.of = now, of
		} else if of.isKnown() && !of.began.IsZero() || !seen.of.isKnown() {
			seen.of = of
		}
		seen.last, seen.flickers = now, all[i].Cause != "" || all[i].Refuses
		l.since[key] = seen
	}
}

// setSince sets since when there are problems; now for those that were not observed yet, or are of another transaction.
func (l *live) setSince(now time.Time, all []problem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range all {
		if all[i].Undated {
			continue
		}
		all[i].Since = now
		if seen, known := l.since[all[i].key()]; known && !all[i].Of.isOther(seen.of) {
			all[i].Since = seen.since
		}
		if !all[i].Began.IsZero() {
			all[i].Since = all[i].Began
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
	l.wakeUp()
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // there are servers without deadlines
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	keepAlive := time.NewTicker(liveKeepAlive)
	defer keepAlive.Stop()
	var (
		sent    map[string]string // the parts that the browser has
		version int
	)
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
		parts, now, event, changed, closed := l.parts, l.version, l.event, l.changed, l.closed
		l.mu.Unlock()
		if closed {
			return
		}
		if now != version && parts != nil {
			if sent == nil || now != version+1 {
				event = changes(sent, parts)
			}
			sent, version = parts, now
			if event != nil && !send(event) {
				return
			}
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

// changes returns an event with what changed; nil if nothing did.
func changes(before, now map[string]string) []byte {
	changed := map[string]any{}
	for id, html := range now {
		if was, known := before[id]; !known || was != html {
			changed[id] = html
		}
	}
	for id := range before {
		if _, still := now[id]; !still {
			changed[id] = nil
		}
	}
	if len(changed) == 0 {
		return nil
	}
	var b bytes.Buffer
	b.WriteString("data: ")
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(changed); err != nil { // cannot happen
		return nil
	}
	b.WriteByte('\n') // Encode has written one
	return b.Bytes()
}
