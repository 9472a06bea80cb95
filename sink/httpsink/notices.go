package httpsink

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/outboxrelay/relay/sink"
)

// noticeFor is how long an answer is remembered.
const noticeFor = time.Hour

// halvedFor is how long an answer of 422 to a batch is noticed: no event is lost by it.
const halvedFor = 5 * time.Minute

// odd remembers answers that decide what happens to events although they look wrong. It is safe for concurrent use.
type odd struct {
	mu sync.Mutex
	// pages are successes that are pages for people, failures those whose bodies seem to name events that failed, unsent those whose requests did not have some events.
	pages, failures, unsent seen
	// halvedAt is when a batch was last answered with 422.
	halvedAt time.Time
}

// seen counts the events that were answered in one way, the last time at at. first says which was the first event, and text all of this.
type seen struct {
	events      int
	first, text string
	at          time.Time
}

func (s *seen) add(what string, events int, first, page string) {
	if time.Since(s.at) > noticeFor {
		s.events, s.first = 0, fmt.Sprintf("%s at %s UTC", first, time.Now().UTC().Format(time.TimeOnly))
	}
	s.events += events
	s.text = fmt.Sprintf("%s The events count as delivered: %d so far, first that with id %s; see %s", what, s.events, s.first, page)
	s.at = time.Now()
}

func (s *seen) holds() bool { return !s.at.IsZero() && time.Since(s.at) < noticeFor }

// add takes an answer to that many events, the first of which has this id. No program reads it. nil remembers nothing: the answer is not the sink's.
func (o *odd) add(r *response, events int, first string) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case isSuccess(r.status) && r.page != "" && r.failed == "":
		o.pages.add(fmt.Sprintf("answers %d with %s: is the URL right?", r.status, r.page), events, first, "docs/http.md#pages")
	case r.status == http.StatusMultiStatus && r.failed == "":
		o.failures.add("answers 207 Multi-Status, which says what became of each part and which no results program reads.", events, first, "docs/http.md#success-with-errors")
	case isSuccess(r.status) && r.failed != "":
		o.failures.add(fmt.Sprintf("answers %d with %s in the body, which no results program reads.", r.status, r.failed), events, first, "docs/http.md#success-with-errors")
	case r.status == http.StatusUnprocessableEntity && events > 1:
		o.halvedAt = time.Now()
	}
}

// addUnsent takes events that are not in the request of a batch.
func (o *odd) addUnsent(of int, ids []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	named := "event "
	if len(ids) > 1 {
		named = "any of the events "
	}
	o.unsent.add(fmt.Sprintf("makes the same request of %d events without %s: the request program leaves it out.", of, named+strings.Join(ids, ", ")), len(ids), ids[0], "docs/http.md#request")
}

// Notices implements sink.Noticer.
func (s *Sink) Notices() (all []sink.Notice) {
	o := &s.odd
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range []*seen{&o.pages, &o.failures, &o.unsent} {
		if s.holds() {
			all = append(all, sink.Notice{Text: s.text, Settled: true})
		}
	}
	if !o.halvedAt.IsZero() && time.Since(o.halvedAt) < halvedFor {
		all = append(all, sink.Notice{Text: "answered 422 within the last 5 minutes, and no results program says which events failed: the relay halves the batch, and sends its good events again; see docs/http.md#results"})
	}
	return all
}

// pageOf says in words for a notice that a response is an HTML page, as a login form or the start page of a web application is, or that its body is not the JSON
// that it says; "" if it is neither. Many servers call any text, or none, text/html. isCut reports whether text is only the beginning.
func pageOf(header http.Header, text []byte, isCut bool) string {
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	text = bytes.TrimSpace(text)
	switch {
	case err != nil || len(text) == 0:
	case kind == "text/html" && text[0] == '<':
		return "text/html"
	case (kind == "application/json" || strings.HasSuffix(kind, "+json")) && !isJSON(text, isCut):
		return kind + " and a body that is not JSON"
	}
	return ""
}

// isJSON reports whether a text is values of JSON, or their beginning.
func isJSON(text []byte, isCut bool) bool {
	d := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for {
		switch err := d.SkipValue(); {
		case errors.Is(err, io.EOF):
			return true
		case err != nil:
			return isCut && errors.Is(err, io.ErrUnexpectedEOF)
		}
	}
}

// failedIn returns the first member of a JSON object that says that something failed, in words for a notice; "" if there is none. In a list it looks
// for the errors of the objects. Of a body that was cut off it reads the beginning. It decides nothing: what a member means is the API's.
func failedIn(text []byte) string {
	d := jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	switch d.PeekKind() {
	case '{':
		failed, _ := failedMember(d, saysFailure) // what cannot be read says nothing
		return failed
	case '[':
		return failedElement(d)
	}
	return ""
}

// failedElement returns the first error of an object in a list.
func failedElement(d *jsontext.Decoder) string {
	_, err := d.ReadToken()
	for err == nil {
		switch d.PeekKind() {
		case '{':
			var failed string
			if failed, err = failedMember(d, saysError); failed != "" {
				return "an element's " + failed
			}
		case ']', jsontext.KindInvalid:
			return ""
		default:
			err = d.SkipValue()
		}
	}
	return ""
}

// failedMember reads an object up to the first member that says that something failed, and returns it.
func failedMember(d *jsontext.Decoder, says func(d *jsontext.Decoder, member string) (string, error)) (string, error) {
	if _, err := d.ReadToken(); err != nil {
		return "", err
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return "", err
		}
		if failed, err := says(d, name.String()); failed != "" || err != nil {
			return failed, err
		}
	}
	_, err := d.ReadToken()
	return "", err
}

// saysFailure reads a member's value and returns what it says in an answer for the whole request.
func saysFailure(d *jsontext.Decoder, member string) (string, error) {
	switch member {
	case "success", "ok":
		if d.PeekKind() == 'f' {
			return `"` + member + `": false`, nil
		}
	case "status", "result":
		if d.PeekKind() == '"' {
			value, err := d.ReadToken()
			if text := value.String(); err == nil && slices.Contains(failureWords, strings.ToLower(text)) {
				return `"` + member + `": "` + text + `"`, nil
			}
			return "", err
		}
		return nestedErrors(d, member)
	case "data":
		return nestedErrors(d, member)
	case "hasErrors", "HasErrors", "has_errors":
		if d.PeekKind() == 't' {
			return `"` + member + `": true`, nil
		}
	case "failed", "failures", "rejected":
		return nonEmpty(d, member)
	default:
		return saysError(d, member)
	}
	return "", d.SkipValue()
}

// failureWords are what a status or a result says of a request that failed, in lower case.
var failureWords = []string{"error", "failed", "fail", "failure"}

// nestedErrors reads a member's value and returns where it has errors, if it is an object. It does not look for one "error": that may be a field of what the
// API has stored.
func nestedErrors(d *jsontext.Decoder, member string) (string, error) {
	if d.PeekKind() != '{' {
		return "", d.SkipValue()
	}
	failed, err := failedMember(d, func(d *jsontext.Decoder, member string) (string, error) {
		if member == "errors" || member == "Errors" {
			return nonEmpty(d, member)
		}
		return "", d.SkipValue()
	})
	if failed != "" {
		failed += ` in "` + member + `"`
	}
	return failed, err
}

// saysError reads a member's value and returns its name if it is an error.
func saysError(d *jsontext.Decoder, member string) (string, error) {
	switch member {
	case "error", "errors", "Error", "Errors", "errorCode", "ErrorCode", "error_code":
		return nonEmpty(d, member)
	}
	return "", d.SkipValue()
}

// nonEmpty reads a member's value and returns its name if the value is not empty.
func nonEmpty(d *jsontext.Decoder, member string) (string, error) {
	if some, err := hasSome(d); !some || err != nil {
		return "", err
	}
	return `"` + member + `"`, nil
}

// hasSome reads a value, and reports whether it is true or anything but empty. A list is so as soon as it has an element.
func hasSome(d *jsontext.Decoder) (bool, error) {
	kind := d.PeekKind()
	value, err := d.ReadToken()
	if err != nil {
		return false, err
	}
	switch kind {
	case '[', '{':
		if next := d.PeekKind(); next != ']' && next != '}' {
			return next != jsontext.KindInvalid, nil
		}
		_, err = d.ReadToken()
		return false, err
	case '"':
		return value.String() != "" && value.String() != "0", nil // some codes are texts
	case '0':
		n, err := value.Float()
		return n != 0, err
	}
	return kind == 't', nil
}
