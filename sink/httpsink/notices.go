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
	mu   sync.Mutex
	page int // the status of the last answer that is a success, if it was a page for people; otherwise 0
	// halvedAt is when a batch was last answered with 422.
	halvedAt time.Time
}

// add counts an answer to that many events which no program reads.
func (o *odd) add(r *response, events int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case isSuccess(r.status) && r.isPage:
		o.page = r.status
	case isSuccess(r.status):
		o.page = 0
	case r.status == http.StatusUnprocessableEntity && events > 1:
		o.halvedAt = time.Now()
	}
}

// Notices implements sink.Noticer.
func (s *Sink) Notices() (texts []string) {
	o := &s.odd
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.page != 0 {
		texts = append(texts, fmt.Sprintf("answers %d with text/html: is the URL right? The events count as delivered", o.page))
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
