package natssink

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// A dead-letter hook must be notified of every event, also of one that died because NATS cannot carry it. What NATS refuses of a dead letter
// (too large, an invalid subject) is published again as a reduced notification: without key, headers and payload, and with a
// payload that says where those are.
const (
	reducedTopic   = 128 // bytes
	reducedError   = 512
	reducedSubject = 256
)

// reduce returns the reduced notifications of the dead letters that were refused, and their indexes in the batch; nil if there are none.
func reduce(b *buffer.Batch, results []error) (reduced *buffer.Batch, indexes []int) {
	for i, err := range results {
		d := b.DeadLetter(i)
		if d == nil || err == nil || errors.Is(err, sink.ErrUnavailable) {
			continue
		}
		if reduced == nil {
			all := *b
			all.Events, all.DeadLetters, reduced = nil, nil, &all
		}
		why := *d
		why.Error = cut(d.Error, reducedError)
		reduced.DeadLetters = append(reduced.DeadLetters, &why)
		reduced.Events = append(reduced.Events, reducedEvent(&b.Events[i], d.Pipeline, err))
		indexes = append(indexes, i)
	}
	return reduced, indexes
}

func reducedEvent(e *outbox.Event, pipeline string, refused error) outbox.Event {
	id := string(e.AppendIdentity(nil))
	less := *e
	less.Topic, less.Key, less.Headers = cut(withoutControls(e.Topic), reducedTopic), nil, nil
	less.Payload = append(less.Payload[:0:0], `{"id":`...)
	less.Payload = sink.AppendJSONString(less.Payload, id)
	less.Payload = append(less.Payload, `,"topic":`...)
	less.Payload = sink.AppendJSONString(less.Payload, less.Topic)
	less.Payload = append(less.Payload, `,"left_out":"key, headers and payload","why":`...)
	less.Payload = sink.AppendJSONString(less.Payload, cut(refused.Error(), reducedError/4))
	less.Payload = append(less.Payload, `,"show":`...)
	less.Payload = sink.AppendJSONString(less.Payload, "relay dead show --pipeline "+pipeline+" --id "+id)
	less.Payload = append(less.Payload, '}')
	return less
}

// withoutControls replaces control characters, which no attribute of a CloudEvent may have.
func withoutControls(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return '_'
		}
		return r
	}, text)
}

// cut returns at most n bytes of a text, with an ellipsis if some are missing. It cuts no character.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	const ellipsis = "…"
	at := n - len(ellipsis)
	for at > 0 && !utf8.RuneStart(text[at]) {
		at--
	}
	return text[:at] + ellipsis
}

// reducedSubjectOf returns a subject for a dead letter whose own is invalid: the characters that no subject may have become underscores.
func (s *Sink) reducedSubjectOf(e *outbox.Event) (string, error) {
	plain := *e
	if plain.Key == nil {
		plain.Key = new(string)
	}
	topic, key := subjectText(plain.Topic), subjectText(*plain.Key)
	plain.Topic, plain.Key = topic, &key
	return s.subjectOf(&plain)
}

// subjectText makes the value of a placeholder valid in a subject.
func subjectText(value string) string {
	value = strings.Map(func(r rune) rune {
		if r <= ' ' || r == '*' || r == '>' || r == '$' || r == utf8.RuneError {
			return '_'
		}
		return r
	}, strings.TrimSuffix(cut(value, reducedSubject), "…"))
	tokens := strings.Split(value, ".")
	for i, token := range tokens {
		if token == "" {
			tokens[i] = "_"
		}
	}
	return strings.Join(tokens, ".")
}
