package natssink

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/sink"
)

var (
	errNoStream   = errors.New("no stream takes the subject")
	errInvalidAck = errors.New("the answer is not a PubAck: the responder on the subject is not a stream")
)

// classifyAck reads the answer to one published event. nil means that a stream has stored the event, now or
// before: a duplicate of its id is this very event.
func classifyAck(m *nats.Msg) error {
	if isPlainAck(m.Data) {
		return nil
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" { // no responders
		return sink.Unavailable(errNoStream)
	}
	var ack struct {
		jetstream.PubAck
		Error *jetstream.APIError `json:"error"`
	}
	switch err := json.Unmarshal(m.Data, &ack); {
	case err != nil:
		return sink.Unavailable(errInvalidAck)
	case ack.Error != nil:
		return classifyAPIError(ack.Error)
	case ack.Stream == "" || ack.Sequence == 0:
		return sink.Unavailable(errInvalidAck)
	}
	return nil
}

// isPlainAck reports whether the text is exactly {"stream":"NAME","seq":123}, as nearly every answer is.
// Parsing all of them as JSON takes a third of the time of publishing.
func isPlainAck(text []byte) bool {
	rest, isAck := bytes.CutPrefix(text, []byte(`{"stream":"`))
	end := bytes.IndexAny(rest, `"\`)
	if !isAck || end <= 0 {
		return false
	}
	digits, hasSeq := bytes.CutPrefix(rest[end:], []byte(`","seq":`))
	digits, isWhole := bytes.CutSuffix(digits, []byte("}"))
	return hasSeq && isWhole && len(digits) > 0 && digits[0] != '0' && len(bytes.Trim(digits, "0123456789")) == 0
}

// The err_codes that need a decision; see the server's errors.json.
const (
	codeAccountResources jetstream.ErrorCode = 10002
	codeStorageExceeded  jetstream.ErrorCode = 10047
	codeStoreFailed      jetstream.ErrorCode = 10077 // mostly because the stream has as many messages or bytes as it may have
	codeTooLarge         jetstream.ErrorCode = 10054
	codeHeadersTooLarge  jetstream.ErrorCode = 10097
	codeSealed           jetstream.ErrorCode = 10109
	codeRollupFailed     jetstream.ErrorCode = 10111
	codeNoLimits         jetstream.ErrorCode = 10120
	codeDuplicatePending jetstream.ErrorCode = 10158
)

// isTooLarge reports whether an event was refused for the size of its message.
func isTooLarge(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, nats.ErrMaxPayload) || ok && (api.ErrorCode == codeTooLarge || api.ErrorCode == codeHeadersTooLarge)
}

// classifyAPIError separates outages from rejections. The server's own failures have codes 5xx and 429
// (stream full or offline, no resources, no leader, JetStream not enabled), rejected events 4xx. Some
// err_codes do not follow that rule.
func classifyAPIError(err *jetstream.APIError) error {
	switch err.ErrorCode {
	case codeTooLarge, codeHeadersTooLarge:
		return sink.Permanent(err)
	case codeAccountResources, codeStorageExceeded, codeStoreFailed:
		return sink.Unavailable(sink.Full(err))
	case codeSealed, codeNoLimits, codeDuplicatePending:
		return sink.Unavailable(err)
	case codeRollupFailed: // the event's own header asked for it
		return err
	}
	if err.Code >= 500 || err.Code == 429 {
		return sink.Unavailable(err)
	}
	return err
}

// subjectScoped reports whether an outage is one subject's (no stream, a full stream, no permission to
// publish there) and not the whole server's.
func subjectScoped(err error) bool {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return api.ErrorCode != codeAccountResources && api.ErrorCode != jetstream.JSErrCodeJetStreamNotEnabled &&
			api.ErrorCode != jetstream.JSErrCodeJetStreamNotEnabledForAccount
	}
	return errors.Is(err, errNoStream) || errors.Is(err, errInvalidAck) || errors.Is(err, nats.ErrPermissionViolation)
}

// combine makes Send's error of the events' results. If all events met an outage, it is the sink's, unless
// other subjects may work: then the error names the events, so that the outage holds up their subjects only.
func combine(subjects []string, results []error, oneSubject bool) error {
	var failed []sink.EventError
	outages, scoped, example := 0, 0, 0
	for i, err := range results {
		if err == nil {
			continue
		}
		if errors.Is(err, sink.ErrUnavailable) {
			outages++
			if subjectScoped(err) {
				scoped++
			}
		}
		if subjects[i] != "" {
			err = fmt.Errorf("subject %q: %w", subjects[i], err)
		}
		if errors.Is(err, errNoStream) {
			err = fmt.Errorf("%w; run: nats stream add NAME --subjects '%s'", err, subjects[i])
		}
		if errors.Is(err, sink.ErrMaybePoison) && len(failed) > 0 && !errors.Is(failed[example].Err, sink.ErrMaybePoison) {
			example = len(failed)
		}
		failed = append(failed, sink.EventError{Index: i, Err: err})
	}
	switch {
	case len(failed) == 0:
		return nil
	case outages < len(results):
		return &sink.BatchError{Events: failed}
	case !oneSubject && scoped == outages:
		return sink.Unavailable(&sink.BatchError{Events: failed})
	}
	if outages == 1 {
		return fmt.Errorf("the event was not accepted: %w", failed[example].Err)
	}
	return fmt.Errorf("none of %d events was accepted: %w", outages, failed[example].Err)
}
