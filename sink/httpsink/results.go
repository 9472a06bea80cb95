package httpsink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/itchyny/gojq"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// answerBytes is how large an answer may be that a program reads; it is read whole.
const answerBytes = 16 << 20

// heard is what an answer means: the events that failed, or an error about all. Results
// says it, unless the status is an outage.
//
// Where Results fails nothing is known of the events, and some may have arrived: so it is
// an outage, and not one that is blamed on the batch, whose halves would go out under
// group_ids that the server has never seen.
func (s *Sink) heard(ctx context.Context, resp *http.Response, r *request, b *buffer.Batch) ([]sink.EventError, error) {
	if s.results == nil || s.statuses.isAway(resp.StatusCode) {
		return nil, s.redactor.read(resp).verdict(s.statuses)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, answerBytes+1))
	err = errors.Join(err, resp.Body.Close())
	switch {
	case err != nil:
		err = fmt.Errorf("the answer could not be read: %w", err)
	case len(text) > answerBytes:
		err = fmt.Errorf("the answer has more than %d MiB, which is the most that is read", answerBytes>>20)
	}
	var failed []sink.EventError
	if err == nil {
		failed, err = s.failures(ctx, resp, string(text), r, b)
	}
	if err != nil {
		err = fmt.Errorf("%s: results: %s%w", statusText(resp.StatusCode), s.redactor.line(err.Error(), false, quoteBytes), errAddress)
		return nil, sink.Unavailable(err)
	}
	if len(failed) == 0 && !isSuccess(resp.StatusCode) {
		// The status says that something was refused, and the program found nothing: taking
		// all for delivered would lose it without a word.
		a := answer{status: resp.StatusCode, quote: s.redactor.quote(text, false)}
		return nil, a.verdict(s.statuses)
	}
	return failed, nil
}

// failures runs the program and reads what it made. An error is no secret's, but it
// quotes others.
func (s *Sink) failures(ctx context.Context, resp *http.Response, text string, r *request, b *buffer.Batch) ([]sink.EventError, error) {
	body, isJSON := bodyValue(text)
	said := map[string]any{"status": resp.StatusCode, "headers": headerValues(resp.Header), "body": body}
	if !s.results.isNarrow {
		said["events"] = r.values
	}
	made, err := s.results.run(ctx, said)
	switch {
	case err != nil && !isJSON:
		return nil, fmt.Errorf("%w (the body is not JSON)", err)
	case err != nil:
		return nil, err
	}
	list, ok := made.([]any)
	if !ok {
		return nil, fmt.Errorf("it made %s, an array of {id or index, error, retry} was expected", described(made))
	}
	named := verdicts{sink: s, batch: b, sent: r.events, status: resp.StatusCode, retry: make(map[int]bool, len(list))}
	for at, one := range list {
		if err := named.add(one); err != nil {
			return nil, fmt.Errorf("result %d: %w", at, err)
		}
	}
	return named.failed, nil
}

// headerValues are by lower-case names; several of one name are joined.
func headerValues(h http.Header) map[string]any {
	all := make(map[string]any, len(h))
	for name, values := range h {
		all[strings.ToLower(name)] = strings.ToValidUTF8(strings.Join(values, ", "), "\uFFFD")
	}
	return all
}

// bodyValue is the body as JSON, or as a string when it is none.
func bodyValue(text string) (value any, isJSON bool) {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if v, err := parseJSON(text); err == nil {
		return v, true
	}
	return text, false
}

// verdicts gathers what a program says of the events.
type verdicts struct {
	sink   *Sink
	batch  *buffer.Batch
	sent   []int // indexes of the batch, in the order of the request
	status int
	byID   map[string]int // where in sent; made when it is needed
	retry  map[int]bool   // of those that were named, by index of the batch
	failed []sink.EventError
}

var resultKeys = []string{"id", "index", "error", "retry"}

// add takes one element of what a program made.
func (v *verdicts) add(one any) error {
	result, ok := one.(map[string]any)
	if !ok {
		return fmt.Errorf("it is %s, an object {id or index, error, retry} was expected", described(one))
	}
	for name := range result {
		if !slices.Contains(resultKeys, name) {
			return fmt.Errorf("it has %q, id or index, error, retry were expected", name)
		}
	}
	at, err := v.event(result)
	if err != nil {
		return err
	}
	again, ok := result["retry"].(bool)
	if !ok && result["retry"] != nil {
		return fmt.Errorf("its retry is %s, true or false was expected", described(result["retry"]))
	}
	index := v.sent[at]
	if before, twice := v.retry[index]; twice && before != again {
		return errors.New("it names an event that was named before, with another retry")
	} else if twice {
		return nil
	}
	v.retry[index] = again
	why := errors.New(v.why(result["error"]))
	if !again {
		why = sink.Permanent(why)
	}
	v.failed = append(v.failed, sink.EventError{Index: index, Err: why})
	return nil
}

// event finds the event that a result names: its place in the request.
func (v *verdicts) event(result map[string]any) (int, error) {
	id, index := result["id"], result["index"]
	if id == nil && index == nil {
		return 0, errors.New("it has neither id nor index, one of them was expected")
	}
	at := -1
	if index != nil {
		n, isNumber := gojq.ToFloat64(index)
		switch {
		case !isNumber || n != math.Trunc(n):
			return 0, fmt.Errorf("its index is %s, an integer was expected", quoted(index))
		case n < 0 || n >= float64(len(v.sent)):
			return 0, fmt.Errorf("its index is %s, and %d events were sent: 0 to %d was expected", quoted(index), len(v.sent), len(v.sent)-1)
		}
		at = int(n)
	}
	if id == nil {
		return at, nil
	}
	if v.byID == nil {
		v.byID = make(map[string]int, len(v.sent))
		for i, index := range v.sent {
			v.byID[v.batch.Events[index].Identity()] = i
		}
	}
	name, ok := id.(string)
	if !ok {
		if _, ok = gojq.ToFloat64(id); !ok {
			return 0, fmt.Errorf("its id is %s, a string was expected", described(id))
		}
		name = quoted(id)
	}
	found, ok := v.byID[name]
	switch {
	case !ok:
		return 0, fmt.Errorf("its id is %s, and no such event was sent", quoted(id))
	case at >= 0 && at != found:
		return 0, fmt.Errorf("its id is %s and its index %s, and these are two events", quoted(id), quoted(index))
	}
	return found, nil
}

// wordsBytes is how much of the reason for one event is kept.
const wordsBytes = 4 << 10

// why is the reason in the server's own words, on one line.
func (v *verdicts) why(reason any) string {
	text, ok := reason.(string)
	if !ok && reason != nil {
		text = quoted(reason)
	}
	if text = v.sink.redactor.line(text, false, wordsBytes); text == "" {
		return "refused without a reason (" + statusText(v.status) + ")"
	}
	return text
}

// quoted is a value as JSON.
func quoted(v any) string {
	w := writer{most: wordsBytes * 4}
	if err := w.value(v, 0); err != nil {
		return described(v)
	}
	return string(w.text)
}

func isSuccess(status int) bool { return status >= 200 && status <= 299 }

func statusText(status int) string {
	return strings.TrimSpace(strconv.Itoa(status) + " " + http.StatusText(status))
}
