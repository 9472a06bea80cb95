package httpsink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sync/semaphore"

	"github.com/outboxrelay/relay/internal/jq"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

const (
	// maxResponse is the largest response that a program reads, in bytes after decompression.
	maxResponse = 16 << 20
	// largeResponse is where a response begins to be large, in bytes.
	largeResponse = 1 << 20
	// maxLarge is how many large responses this process has in memory at once.
	maxLarge = 4
)

// readResponse returns the events that failed according to the response, or an error about the whole
// batch. Results decides, unless the status is an outage.
//
// If Results fails, it is not known which events arrived. That is an outage, and never blamed on the batch:
// its halves would be sent under group_ids that the server does not know, and arrive twice. remember gets an answer that looks wrong.
func (s *Sink) readResponse(ctx context.Context, resp *http.Response, r *request, b *buffer.Batch, remember *odd) ([]sink.EventError, error) {
	if outage, _ := s.cfg.classify(resp.StatusCode); s.results == nil || outage {
		read := s.redactor.read(resp)
		if s.results == nil && !outage {
			remember.add(&read, len(r.indexes), string(b.Events[r.indexes[0]].AppendIdentity(nil)))
		}
		return nil, read.classify(s.cfg, b)
	}
	defer resp.Body.Close()
	text, release, err := readBody(ctx, resp.Body)
	defer release()
	var failed []sink.EventError
	ran := err == nil
	if ran {
		failed, err = s.runResults(ctx, resp, text, r, b)
	}
	if err != nil {
		why := s.redactor.line(err.Error(), false, maxQuote)
		if quote := s.redactor.quote(text, false); ran && quote != "" {
			why += "; the response is " + quote
		}
		said := sink.MaybeAccepted(fmt.Errorf("%s: results: %s%w", statusText(resp.StatusCode), why, errResponded))
		if ran && !errors.Is(err, jq.ErrProcess) {
			said = sink.ProgramFailed(said)
		}
		return nil, said
	}
	if !isSuccess(resp.StatusCode) && (len(failed) == 0 || len(failed) < len(r.indexes) && !s.resultsReadStatus) {
		// The status says that something was rejected, but the program found nothing. Without this
		// check a program that looks in the wrong place would lose events silently. So would one that names some events of a request of which the
		// API took nothing; only a program that looks at the status can say that it took the others.
		whole := response{status: resp.StatusCode, quote: s.redactor.quote(text, false)}
		return nil, whole.classify(s.cfg, b)
	}
	return failed, nil
}

// large bounds how many large responses are in memory at once, read and waiting for the program.
var large = semaphore.NewWeighted(maxLarge)

// readBody reads the body. release must be called when the text is not used any more.
func readBody(ctx context.Context, body io.Reader) (text []byte, release func(), err error) {
	release = func() {}
	var read bytes.Buffer
	_, err = io.CopyN(&read, body, largeResponse)
	if err == nil {
		if err = large.Acquire(ctx, 1); err != nil {
			return nil, release, fmt.Errorf("waiting for the memory that other large responses take: %w", err)
		}
		release = func() { large.Release(1) }
		_, err = io.CopyN(&read, body, maxResponse+1-largeResponse)
	}
	switch {
	case err == nil:
		return nil, release, fmt.Errorf("the response is larger than %d MiB", maxResponse>>20)
	case !errors.Is(err, io.EOF):
		return nil, release, fmt.Errorf("the response could not be read: %w", err)
	}
	return read.Bytes(), release, nil
}

// runResults runs Config.Results and reads its result. The error may quote secrets.
func (s *Sink) runResults(ctx context.Context, resp *http.Response, text []byte, r *request, b *buffer.Batch) ([]sink.EventError, error) {
	input, err := s.resultsInput(resp, r, b)
	if err != nil {
		return nil, err
	}
	result, err := s.results.Results(ctx, input, text)
	if err != nil {
		return nil, err
	}
	reader := resultReader{sink: s, batch: b, sent: r.indexes, status: resp.StatusCode, named: map[int]named{}}
	return reader.read(result)
}

// resultsInput is the input of Config.Results without the body. Events that it does not read are left out.
func (s *Sink) resultsInput(resp *http.Response, r *request, b *buffer.Batch) ([]byte, error) {
	headers := make(map[string]string, len(resp.Header)) // several values of one name are joined
	for name, values := range resp.Header {
		headers[strings.ToLower(name)] = strings.Join(values, ", ")
	}
	text, err := json.Marshal(map[string]any{"status": resp.StatusCode, "headers": headers})
	if err != nil || !s.resultsReadEvents {
		return text, err
	}
	events := format{`,"events":[`, ",", "]}", sink.AppendEnvelope}
	return append(text[:len(text)-1], events.makeBody(b, r.indexes)...), nil
}

// resultReader reads what Results says about the events. The result is never decoded as a whole, which could take
// many times its length.
type resultReader struct {
	sink   *Sink
	batch  *buffer.Batch
	sent   []int // indexes into the batch, in the order of the request
	status int
	byID   map[string]int // position in sent; made when a result has an id
	named  map[int]named  // by index into the batch
	failed []sink.EventError
}

// named is an event that a result has named: its place in failed, and whether it is sent again.
type named struct {
	at    int
	retry bool
}

// result is one element of what Results returns: the JSON of its values, "" for null.
type result struct{ id, index, error, retry string }

func (r *resultReader) read(text []byte) ([]sink.EventError, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(text))
	if kind := d.PeekKind(); kind != '[' {
		return nil, fmt.Errorf("the program makes %s; expected an array of {id or index, error, retry}", describe(kind))
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	for i := 0; d.PeekKind() != ']'; i++ {
		one, err := readResult(d)
		if err == nil {
			err = r.add(one)
		}
		if err != nil {
			return nil, fmt.Errorf("result %d: %w", i, err)
		}
	}
	return r.failed, nil
}

func readResult(d *jsontext.Decoder) (one result, err error) {
	if kind := d.PeekKind(); kind != '{' {
		return one, fmt.Errorf("it is %s; expected an object {id or index, error, retry}", describe(kind))
	}
	if _, err := d.ReadToken(); err != nil {
		return one, err
	}
	for d.PeekKind() != '}' {
		key, err := d.ReadToken()
		if err != nil {
			return one, err
		}
		name := key.String()
		into, ok := map[string]*string{"id": &one.id, "index": &one.index, "error": &one.error, "retry": &one.retry}[name]
		if !ok {
			return one, fmt.Errorf("it has the key %q; expected id or index, error, retry", name)
		}
		value, err := d.ReadValue()
		if err != nil {
			return one, err
		}
		if value.Kind() != 'n' {
			*into = string(value)
		}
	}
	_, err = d.ReadToken()
	return one, err
}

// describe names a kind of JSON value.
func describe(kind jsontext.Kind) string {
	switch kind {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case '0':
		return "a number"
	}
	return kind.String()
}

func (r *resultReader) add(one result) error {
	position, err := r.findEvent(one.id, one.index)
	if err != nil {
		return err
	}
	retry := one.retry == "true"
	if !retry && one.retry != "" && one.retry != "false" {
		return fmt.Errorf("its retry is %s; expected true or false", describe(jsontext.Value(one.retry).Kind()))
	}
	index := r.sent[position]
	before, seen := r.named[index]
	if seen && (!retry || before.retry) {
		return nil
	}
	reason := errors.New(r.reason(one.error))
	if !retry {
		reason = sink.Permanent(reason)
	}
	if seen { // an event is buried only if nothing speaks for another attempt
		r.failed[before.at].Err = reason
		r.named[index] = named{before.at, true}
		return nil
	}
	r.named[index] = named{len(r.failed), retry}
	r.failed = append(r.failed, sink.EventError{Index: index, Err: reason})
	return nil
}

// findEvent returns the position in the request of the event that a result names.
func (r *resultReader) findEvent(id, index string) (int, error) {
	if id == "" && index == "" {
		return 0, errors.New("it has neither id nor index; expected one of them")
	}
	position := -1
	if index != "" {
		n, err := strconv.ParseFloat(index, 64)
		switch {
		case err != nil && !errors.Is(err, strconv.ErrRange) || n != math.Trunc(n):
			return 0, fmt.Errorf("its index is %s; expected an integer", index)
		case n < 0 || n >= float64(len(r.sent)):
			return 0, fmt.Errorf("its index is %s; expected 0 to %d, for the request had %d events", index, len(r.sent)-1, len(r.sent))
		}
		position = int(n)
	}
	if id == "" {
		return position, nil
	}
	if r.byID == nil {
		r.byID = make(map[string]int, len(r.sent))
		for i, index := range r.sent {
			r.byID[r.batch.Events[index].Identity()] = i
		}
	}
	name, kind := id, jsontext.Value(id).Kind()
	switch kind {
	case '"':
		name = unquote(id)
	case '0':
	default:
		return 0, fmt.Errorf("its id is %s; expected a string", describe(kind))
	}
	found, ok := r.byID[name]
	switch {
	case !ok:
		return 0, fmt.Errorf("its id is %s; expected the id of an event in the request", id)
	case position >= 0 && position != found:
		return 0, fmt.Errorf("its id %s and its index %s name two events; expected one", id, index)
	}
	return found, nil
}

func unquote(quoted string) string {
	text, _ := jsontext.AppendUnquote(nil, quoted) // it is valid
	return string(text)
}

// maxReason is how many bytes are kept of the reason for one event.
const maxReason = 4 << 10

// reason is the server's reason on one line. The server or the program may have cut it.
func (r *resultReader) reason(text string) string {
	if strings.HasPrefix(text, `"`) {
		text = unquote(text)
	}
	if text = r.sink.redactor.line(text, true, maxReason); text == "" {
		return "rejected without a reason (" + statusText(r.status) + ")"
	}
	return text
}
