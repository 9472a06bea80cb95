package httpsink

import (
	"bytes"
	"fmt"
	"mime"
	"net/http"
	"sync"
	"time"
)

// noticeFor is how long an answer is remembered.
const noticeFor = time.Hour

// odd remembers answers that decide what happens to events although they look wrong. It is safe for concurrent use.
type odd struct {
	mu sync.Mutex
	// pages counts the events that were answered with a success that is a page for people, the last time at pageAt; pageOf says which was the first, and page all of this.
	pages  int
	pageOf string
	page   string
	pageAt time.Time
	// halvedAt is when a batch was last answered with 422.
	halvedAt time.Time
}

// add takes an answer to that many events, the first of which has this id. No program reads it. nil remembers nothing: the answer is not the sink's.
func (o *odd) add(r *response, events int, first string) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case isSuccess(r.status) && r.isPage:
		if time.Since(o.pageAt) > noticeFor {
			o.pages, o.pageOf = 0, fmt.Sprintf("%s at %s UTC", first, time.Now().UTC().Format(time.TimeOnly))
		}
		o.pages += events
		o.page = fmt.Sprintf("answers %d with text/html: is the URL right? The events count as delivered: %d so far, first that with id %s; see docs/http.md#pages", r.status, o.pages, o.pageOf)
		o.pageAt = time.Now()
	case r.status == http.StatusUnprocessableEntity && events > 1:
		o.halvedAt = time.Now()
	}
}

// Notices implements sink.Noticer.
func (s *Sink) Notices() (texts []string) {
	o := &s.odd
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.pageAt.IsZero() && time.Since(o.pageAt) < noticeFor {
		texts = append(texts, o.page)
	}
	if !o.halvedAt.IsZero() && time.Since(o.halvedAt) < noticeFor {
		texts = append(texts, "answers 422 and no results program says which events failed: the relay halves the batch, and sends its good events again; see docs/http.md#results")
	}
	return texts
}

// isPage reports whether a response is an HTML page, as a login form or the start page of a web application is. Many servers call any text, or
// none, text/html.
func isPage(header http.Header, text []byte) bool {
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	return err == nil && kind == "text/html" && bytes.HasPrefix(bytes.TrimSpace(text), []byte("<"))
}
