package httpsink

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/outboxrelay/relay/sink"
)

// readBytes is how much of an answer is read. A connection with more left on it
// is not used again.
const readBytes = 64 << 10

// answer is what a server said.
type answer struct {
	status     int
	retryAfter time.Duration
	quote      string // of the body, or why it could not be read; safe to show
}

// read reads the answer as far as it matters and gives the connection back.
func (r redactor) read(resp *http.Response) answer {
	text, err := io.ReadAll(io.LimitReader(resp.Body, readBytes))
	err = errors.Join(err, resp.Body.Close())
	a := answer{status: resp.StatusCode}
	a.retryAfter, _ = pauses(a.status, resp.Header, time.Now())
	a.quote = r.quote(text, err != nil || len(text) == readBytes)
	if err != nil {
		a.quote += " (" + r.redact(err.Error()) + ")"
	}
	return a
}

// verdict tells what the status means for the batch.
func (a answer) verdict(overruled statuses) error {
	if isSuccess(a.status) {
		return nil
	}
	outage, suspect := overruled.judge(a.status)
	text := statusText(a.status)
	switch {
	case a.status >= 300 && a.status <= 399:
		text += " (redirects are not followed)"
	case outage && (a.status == http.StatusUnauthorized || a.status == http.StatusForbidden):
		text += " (look at what authorizes the sink; the events wait)"
	case outage && a.status == http.StatusProxyAuthRequired:
		text += " (look at the user and password of the proxy; the events wait)"
	}
	if a.quote != "" {
		text += ": " + a.quote
	}
	err := errors.New(text)
	if !outage {
		if a.status == http.StatusRequestEntityTooLarge {
			err = sink.TooLarge(err)
		}
		return sink.Permanent(err)
	}
	if a.retryAfter > 0 {
		err = &sink.UnavailableError{Err: err, RetryAfter: a.retryAfter}
	} else {
		err = fmt.Errorf("%w%w", err, errAddress)
	}
	if suspect {
		return sink.MaybePoison(err)
	}
	return sink.Unavailable(err)
}

// statuses are those to which Config gives another meaning.
type statuses struct{ refused, unavailable []int }

// judge tells whether a status is an outage, and whether that may be the batch's
// doing. One that was called an outage by name is nothing else.
func (s statuses) judge(status int) (outage, suspect bool) {
	switch {
	case slices.Contains(s.refused, status):
		return false, false
	case slices.Contains(s.unavailable, status):
		return true, false
	}
	return isOutage(status), status >= 500
}

// isAway tells whether a status is an outage.
func (s statuses) isAway(status int) bool {
	outage, _ := s.judge(status)
	return outage && !isSuccess(status)
}

// errAddress marks an answer that came: there is a server, and if it has other
// URLs they may work. It adds nothing to the text.
var errAddress = silent{}

type silent struct{}

func (silent) Error() string { return "" }

// isOutage tells the statuses that say nothing about the events. Those that call
// for another URL, other credentials or another time are among them.
func isOutage(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
		http.StatusProxyAuthRequired, http.StatusRequestTimeout, http.StatusMisdirectedRequest,
		http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status < 400 || status > 499
}

// failed is the verdict when there was no answer.
func (r redactor) failed(err error) error { return sink.Unavailable(r.clean(err)) }

// clean takes secrets out of an error's text.
func (r redactor) clean(err error) error { return &hiding{err: err, text: r.redact(err.Error())} }

// hiding is an error whose text has been cleaned.
type hiding struct {
	err  error
	text string
}

func (h *hiding) Error() string { return h.text }
func (h *hiding) Unwrap() error { return h.err }
