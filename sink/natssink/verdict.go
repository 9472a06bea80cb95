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
	errNoStream   = errors.New("no stream takes it")
	errStrangeAck = errors.New("the answer is not a PubAck: something other than a stream answers on the subject")
)

// judge reads the answer to one published event: nil means that a stream has
// stored it, or had already (duplicate).
func judge(m *nats.Msg) (duplicate bool, verdict error) {
	if plainAck(m.Data) {
		return false, nil
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" { // no responders
		return false, sink.Unavailable(errNoStream)
	}
	var ack struct {
		jetstream.PubAck
		Error *jetstream.APIError `json:"error"`
	}
	switch err := json.Unmarshal(m.Data, &ack); {
	case err != nil:
		return false, sink.Unavailable(errStrangeAck)
	case ack.Error != nil:
		return false, classify(ack.Error)
	case ack.Stream == "" || ack.Sequence == 0:
		return false, sink.Unavailable(errStrangeAck)
	}
	return ack.Duplicate, nil
}

// plainAck tells whether the text is exactly {"stream":"NAME","seq":123}, as nearly
// every answer is. Parsing all of them as JSON takes a third of the time of
// publishing.
func plainAck(text []byte) bool {
	rest, ok := bytes.CutPrefix(text, []byte(`{"stream":"`))
	if !ok {
		return false
	}
	end := bytes.IndexAny(rest, `"\`)
	if end <= 0 {
		return false
	}
	digits, ok := bytes.CutPrefix(rest[end:], []byte(`","seq":`))
	if !ok {
		return false
	}
	digits, ok = bytes.CutSuffix(digits, []byte("}"))
	if !ok || len(digits) == 0 || digits[0] == '0' {
		return false
	}
	for _, d := range digits {
		if d < '0' || d > '9' {
			return false
		}
	}
	return true
}

// What a stream answers, by err_code; see the server's errors.json.
const (
	codeAccountResources jetstream.ErrorCode = 10002
	codeTooLarge         jetstream.ErrorCode = 10054
	codeHeadersTooLarge  jetstream.ErrorCode = 10097
	codeSealed           jetstream.ErrorCode = 10109
	codeRollupFailed     jetstream.ErrorCode = 10111
	codeNoLimits         jetstream.ErrorCode = 10120
	codeDuplicateNow     jetstream.ErrorCode = 10158
)

// classify tells an outage from a refusal. The codes of the server's own troubles
// are 5xx and 429 (stream full or offline, no resources, no leader, not
// enabled), those of a wrong event are 4xx; but some are filed oddly.
func classify(err *jetstream.APIError) error {
	switch err.ErrorCode {
	case codeTooLarge, codeHeadersTooLarge:
		return sink.Permanent(err)
	case codeAccountResources, codeSealed, codeNoLimits, codeDuplicateNow:
		return sink.Unavailable(err)
	case codeRollupFailed: // the event's own header asked for it
		return err
	}
	if err.Code >= 500 || err.Code == 429 {
		return sink.Unavailable(err)
	}
	return err
}

// ofSubject tells an outage that is one subject's (no stream, one that is full,
// no leave to publish there) from the server's own, which is everybody's.
func ofSubject(err error) bool {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return api.ErrorCode != codeAccountResources && api.ErrorCode != jetstream.JSErrCodeJetStreamNotEnabled &&
			api.ErrorCode != jetstream.JSErrCodeJetStreamNotEnabledForAccount
	}
	return errors.Is(err, errNoStream) || errors.Is(err, errStrangeAck) || errors.Is(err, nats.ErrPermissionViolation)
}

// sum makes one answer of the verdicts. An outage of all of them is the sink's,
// unless other subjects may work: then it is told of the events, so that it
// stops nobody else's.
func sum(subjects []string, verdicts []error, oneSubject bool) error {
	var refused []sink.EventError
	outages, ofSubjects, worst := 0, 0, 0
	for i, err := range verdicts {
		if err == nil {
			continue
		}
		if errors.Is(err, sink.ErrUnavailable) {
			outages++
			if ofSubject(err) {
				ofSubjects++
			}
		}
		if subjects[i] != "" {
			err = fmt.Errorf("subject %q: %w", subjects[i], err)
		}
		if errors.Is(err, errNoStream) {
			err = fmt.Errorf("%w (make one: nats stream add NAME --subjects '%s')", err, subjects[i])
		}
		if errors.Is(err, sink.ErrMaybePoison) && len(refused) > 0 && !errors.Is(refused[worst].Err, sink.ErrMaybePoison) {
			worst = len(refused)
		}
		refused = append(refused, sink.EventError{Index: i, Err: err})
	}
	switch {
	case len(refused) == 0:
		return nil
	case outages < len(verdicts):
		return &sink.BatchError{Events: refused}
	case !oneSubject && ofSubjects == outages:
		return sink.Unavailable(&sink.BatchError{Events: refused})
	}
	return fmt.Errorf("none of %d events was accepted, such as: %w", outages, refused[worst].Err)
}
