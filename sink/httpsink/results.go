package httpsink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/itchyny/gojq"
	"golang.org/x/sync/semaphore"

	"github.com/outboxrelay/relay/internal/jq"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// The limits of a response that a program reads. They count what is left after decompression.
const (
	maxResponse = 16 << 20 // bytes
	maxValues   = 1 << 19
	valueBytes  = 400 // the memory that a decoded value can take
	// maxDecoded is the memory of all large responses that programs read at the same time in this process.
	maxDecoded   = 256 << 20
	largeDecoded = 1 << 20
)

// decoding limits the memory of large responses.
var decoding = semaphore.NewWeighted(maxDecoded)

// readResponse returns the events that failed according to the response, or an error about the whole
// batch. Results decides, unless the status is an outage.
//
// If Results fails, it is not known which events arrived. That is an outage, and never blamed on the batch:
// its halves would be sent under group_ids that the server does not know, and arrive twice.
func (s *Sink) readResponse(ctx context.Context, resp *http.Response, r *request, b *buffer.Batch) ([]sink.EventError, error) {
	if outage, _ := s.cfg.classify(resp.StatusCode); s.results == nil || outage {
		return nil, s.redactor.read(resp).classifyStatus(s.cfg)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse+1))
	err = errors.Join(err, resp.Body.Close())
	switch {
	case err != nil:
		err = fmt.Errorf("the response could not be read: %w", err)
	case len(text) > maxResponse:
		err = fmt.Errorf("the response is larger than %d MiB", maxResponse>>20)
	}
	var failed []sink.EventError
	if err == nil {
		failed, err = s.runResults(ctx, resp, text, r, b)
	}
	if err != nil {
		err = fmt.Errorf("%s: results: %s%w", statusText(resp.StatusCode), s.redactor.line(err.Error(), false, maxQuote), errResponded)
		return nil, sink.Unavailable(err)
	}
	if len(failed) == 0 && !isSuccess(resp.StatusCode) {
		// The status says that something was rejected, but the program found nothing. Without this
		// check a program that looks in the wrong place would lose events silently.
		whole := response{status: resp.StatusCode, quote: s.redactor.quote(text, false)}
		return nil, whole.classifyStatus(s.cfg)
	}
	return failed, nil
}

// runResults runs Config.Results and reads its result. The error may quote secrets.
func (s *Sink) runResults(ctx context.Context, resp *http.Response, text []byte, r *request, b *buffer.Batch) ([]sink.EventError, error) {
	values := countValues(text)
	if values > maxValues {
		return nil, fmt.Errorf("the response has more than %d values", maxValues)
	}
	if size := int64(len(text) + values*valueBytes); size > largeDecoded {
		if err := decoding.Acquire(ctx, size); err != nil {
			return nil, fmt.Errorf("waiting for the memory that other large responses take: %w", err)
		}
		defer decoding.Release(size)
	}
	body, isJSON := decodeBody(text)
	result, err := s.results.Run(ctx, map[string]any{
		"status": resp.StatusCode, "headers": headerValues(resp.Header), "body": body, "events": r.values,
	})
	switch {
	case err != nil && !isJSON:
		return nil, fmt.Errorf("%w (the body is not JSON)", err)
	case err != nil:
		return nil, err
	}
	elements, ok := result.([]any)
	if !ok {
		return nil, fmt.Errorf("the program makes %s; expected an array of {id or index, error, retry}", jq.Describe(result))
	}
	reader := resultReader{sink: s, batch: b, sent: r.indexes, status: resp.StatusCode, retry: make(map[int]bool, len(elements))}
	for i, element := range elements {
		if err := reader.add(element); err != nil {
			return nil, fmt.Errorf("result %d: %w", i, err)
		}
	}
	return reader.failed, nil
}

// headerValues are the headers by name in lower case. Several values of one name are joined.
func headerValues(h http.Header) map[string]any {
	all := make(map[string]any, len(h))
	for name, values := range h {
		all[strings.ToLower(name)] = strings.ToValidUTF8(strings.Join(values, ", "), "\uFFFD")
	}
	return all
}

// decodeBody returns the body's value, or the body as a string if it is not JSON.
func decodeBody(text []byte) (body any, isJSON bool) {
	if body, err := jq.Decode(text); err == nil {
		return body, true
	}
	return strings.ToValidUTF8(string(text), "\uFFFD"), false
}

// countValues is at least the number of values in a JSON text. Commas within strings count too, which does not matter
// this far from a usual response.
func countValues(text []byte) int {
	return bytes.Count(text, []byte(",")) + bytes.Count(text, []byte("[")) + bytes.Count(text, []byte("{"))
}

// resultKeys are the keys of an element of what Results returns.
var resultKeys = []string{"id", "index", "error", "retry"}

// resultReader reads what Results says about the events.
type resultReader struct {
	sink   *Sink
	batch  *buffer.Batch
	sent   []int // indexes into the batch, in the order of the request
	status int
	byID   map[string]int // position in sent; made when a result has an id
	retry  map[int]bool   // of the events read so far, by index into the batch
	failed []sink.EventError
}

// add reads one element of the program's result.
func (r *resultReader) add(element any) error {
	result, ok := element.(map[string]any)
	if !ok {
		return fmt.Errorf("it is %s; expected an object {id or index, error, retry}", jq.Describe(element))
	}
	for name := range result {
		if !slices.Contains(resultKeys, name) {
			return fmt.Errorf("it has the key %q; expected id or index, error, retry", name)
		}
	}
	position, err := r.findEvent(result["id"], result["index"])
	if err != nil {
		return err
	}
	retry, ok := result["retry"].(bool)
	if !ok && result["retry"] != nil {
		return fmt.Errorf("its retry is %s; expected true or false", jq.Describe(result["retry"]))
	}
	index := r.sent[position]
	if before, seen := r.retry[index]; seen && before != retry {
		return errors.New("an earlier result names the same event with another retry; expected one result for each event")
	} else if seen {
		return nil
	}
	r.retry[index] = retry
	reason := errors.New(r.reason(result["error"]))
	if !retry {
		reason = sink.Permanent(reason)
	}
	r.failed = append(r.failed, sink.EventError{Index: index, Err: reason})
	return nil
}

// findEvent returns the position in the request of the event that a result names.
func (r *resultReader) findEvent(id, index any) (int, error) {
	if id == nil && index == nil {
		return 0, errors.New("it has neither id nor index; expected one of them")
	}
	position := -1
	if index != nil {
		n, isNumber := gojq.ToFloat64(index)
		switch {
		case !isNumber || n != math.Trunc(n):
			return 0, fmt.Errorf("its index is %s; expected an integer", jq.Encode(index))
		case n < 0 || n >= float64(len(r.sent)):
			return 0, fmt.Errorf("its index is %s; expected 0 to %d, for the request had %d events", jq.Encode(index), len(r.sent)-1, len(r.sent))
		}
		position = int(n)
	}
	if id == nil {
		return position, nil
	}
	if r.byID == nil {
		r.byID = make(map[string]int, len(r.sent))
		for i, index := range r.sent {
			r.byID[r.batch.Events[index].Identity()] = i
		}
	}
	name, ok := id.(string)
	if !ok {
		if _, isNumber := gojq.ToFloat64(id); !isNumber {
			return 0, fmt.Errorf("its id is %s; expected a string", jq.Describe(id))
		}
		name = string(jq.Encode(id))
	}
	found, ok := r.byID[name]
	switch {
	case !ok:
		return 0, fmt.Errorf("its id is %s; expected the id of an event in the request", jq.Encode(id))
	case position >= 0 && position != found:
		return 0, fmt.Errorf("its id %s and its index %s name two events; expected one", jq.Encode(id), jq.Encode(index))
	}
	return found, nil
}

// maxReason is how many bytes are kept of the reason for one event.
const maxReason = 4 << 10

// reason is the server's reason on one line.
func (r *resultReader) reason(reason any) string {
	text, ok := reason.(string)
	if !ok && reason != nil {
		text = string(jq.Encode(reason))
	}
	if text = r.sink.redactor.line(text, false, maxReason); text == "" {
		return "rejected without a reason (" + statusText(r.status) + ")"
	}
	return text
}
