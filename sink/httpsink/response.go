package httpsink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// maxQuotedRead is how much of a response's body is read if no program reads it. net/http closes a
// connection that still has more.
const maxQuotedRead = 64 << 10

// response is what matters of a server's response.
type response struct {
	status     int
	retryAfter time.Duration
	quote      string // of the body, or why it could not be read; without secrets
	page       string // what the answer is that no API gives, as a page for people; "" for nothing
	failed     string // what in the body of a success says that something failed; "" for nothing
}

// read reads the response as far as it matters and releases the connection.
func (r *redactor) read(resp *http.Response) response {
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxQuotedRead))
	err = errors.Join(err, resp.Body.Close())
	read := response{status: resp.StatusCode, page: pageOf(resp.Header, text, err != nil || len(text) == maxQuotedRead)}
	if isSuccess(read.status) {
		read.failed = failedIn(text)
	}
	read.retryAfter, _ = retryDelays(read.status, resp.Header, time.Now())
	read.quote = r.quote(text, err != nil || len(text) == maxQuotedRead)
	if err != nil {
		read.quote += " (" + r.redact(err.Error()) + ")"
	}
	return read
}

// classify returns what the response means for the batch: nil if it is delivered.
//
// A 409 to a batch that may have been sent before probably says that the server is still at that request
// (draft-ietf-httpapi-idempotency-key-header): nobody knows what was accepted. If it keeps hitting the batch, it is a rejection.
func (r response) classify(c Config, b *buffer.Batch) error {
	if r.status != http.StatusConflict || !b.MaybeSent || slices.Contains(c.Refused, r.status) || slices.Contains(c.Unavailable, r.status) {
		return r.classifyStatus(c)
	}
	c.Unavailable = []int{r.status}
	return sink.InProgress(r.classifyStatus(c))
}

// classifyStatus returns what the status means for the batch: nil if it is delivered.
func (r response) classifyStatus(c Config) error {
	if isSuccess(r.status) {
		return nil
	}
	isOutage, maybePoison := c.classify(r.status)
	text := statusText(r.status)
	switch {
	case r.status == http.StatusSwitchingProtocols:
		text += upgradeHint
	case r.status >= 300 && r.status <= 399:
		text += " (redirects are not followed)"
	case isOutage && (r.status == http.StatusUnauthorized || r.status == http.StatusForbidden):
		text += " (check the sink's credentials; the events wait)"
	case isOutage && (r.status == http.StatusNotFound || r.status == http.StatusMethodNotAllowed || r.status == http.StatusGone):
		text += " (check the sink's URL; the events wait)"
	case isOutage && r.status == http.StatusProxyAuthRequired:
		text += " (check the proxy's user and password; the events wait)"
	}
	if r.quote != "" {
		text += ": " + r.quote
	}
	err := errors.New(text)
	if !isOutage {
		if r.status == http.StatusRequestEntityTooLarge {
			err = sink.TooLarge(err)
		}
		return sink.Permanent(err)
	}
	if r.retryAfter > 0 {
		err = &sink.UnavailableError{Err: err, RetryAfter: r.retryAfter}
	} else {
		err = fmt.Errorf("%w%w", err, errResponded)
	}
	switch r.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		err = sink.Access(err)
	case http.StatusInsufficientStorage:
		err = sink.Full(err)
	}
	switch {
	case maybePoison:
		return sink.MaybePoison(err)
	case c.asksToWait(r.status), r.retryAfter > 0 && c.acceptsNothing(r.status):
		return sink.AskedToWait(err)
	case c.acceptsNothing(r.status):
		return sink.NotAccepted(err)
	}
	return sink.Unavailable(err)
}

// classify reports whether a status is an outage, and whether the batch may cause it. A status that is
// configured as an outage is never the batch's fault.
func (c Config) classify(status int) (outage, maybePoison bool) {
	switch {
	case slices.Contains(c.Refused, status):
		return false, false
	case slices.Contains(c.Unavailable, status):
		return true, false
	}
	return isOutage(status), status >= 500
}

// acceptsNothing reports whether a status that is an outage says that nothing of the request was accepted, and does not
// ask for another time. A 302 or 303 says neither: a server may answer so what it accepted.
func (c Config) acceptsNothing(status int) bool {
	switch status {
	case http.StatusTemporaryRedirect, http.StatusPermanentRedirect, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound,
		http.StatusMethodNotAllowed, http.StatusProxyAuthRequired, http.StatusGone, http.StatusMisdirectedRequest:
		return !slices.Contains(c.Unavailable, status)
	}
	return false
}

// asksToWait reports whether a status that is an outage asks for another time, and says that nothing of the request was accepted.
func (c Config) asksToWait(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return !slices.Contains(c.Unavailable, status)
	}
	return false
}

// isOutage reports whether a status says nothing about the events. A status that asks for another URL,
// other credentials or another time does not.
func isOutage(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
		http.StatusProxyAuthRequired, http.StatusRequestTimeout, http.StatusGone, http.StatusMisdirectedRequest,
		http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return !isSuccess(status) && (status < 400 || status > 499)
}

func isSuccess(status int) bool { return status >= 200 && status <= 299 }

func statusText(status int) string {
	return strings.TrimSpace(strconv.Itoa(status) + " " + http.StatusText(status))
}

// errResponded marks an outage at a server that responded: its other URLs may work. It has no text.
var errResponded = errors.New("")

// outage is the error of a request without a response.
func (r *redactor) outage(err error) error {
	cleaned := r.clean(err)
	if errors.Is(err, context.DeadlineExceeded) {
		cleaned.text = strings.Replace(cleaned.text, context.DeadlineExceeded.Error(), "no answer in time (see sink.timeout)", 1)
	}
	return sink.Unavailable(cleaned)
}

// clean removes secrets from an error's text.
func (r *redactor) clean(err error) *redactedError {
	return &redactedError{err: err, text: r.redact(err.Error())}
}

type redactedError struct {
	err  error
	text string
}

func (e *redactedError) Error() string { return e.text }
func (e *redactedError) Unwrap() error { return e.err }
