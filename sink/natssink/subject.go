package natssink

import (
	"errors"
	"fmt"
	"strings"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// maxSubject leaves room for the rest of a protocol line. A server takes lines of 4096
// bytes unless configured otherwise, and closes the connection on a longer one.
const maxSubject = 3900

// AddressOf implements sink.Addresser: the subject.
func (s *Sink) AddressOf(e *outbox.Event) (address string, ok bool) {
	address, err := s.subjectOf(e)
	return address, err == nil
}

// OneAddress implements sink.Addresser.
func (s *Sink) OneAddress() bool { return s.subject.Fixed() }

// subjectOf returns the event's subject. The error wraps sink.ErrPermanent.
func (s *Sink) subjectOf(e *outbox.Event) (string, error) {
	subject, err := s.subject.Address(e)
	if err != nil {
		return "", err
	}
	if err := checkSubject(subject); err != nil {
		return "", sink.Permanent(fmt.Errorf("subject %q: %w", subject[:min(len(subject), 200)], err))
	}
	return subject, nil
}

func checkSubject(subject string) error {
	if len(subject) > maxSubject {
		return fmt.Errorf("it is %d bytes long; expected at most %d", len(subject), maxSubject)
	}
	if strings.ContainsAny(subject, " \t\r\n\x00") {
		return errors.New("it contains a blank, a line break or a NUL")
	}
	for token := range strings.SplitSeq(subject, ".") {
		switch token {
		case "":
			return errors.New("it has an empty token")
		case "*", ">":
			return errors.New("it contains a wildcard; events can only be published to a plain subject")
		}
	}
	// An event that commands the server is a mistake or an attack.
	if strings.HasPrefix(subject, "$JS.") || strings.HasPrefix(subject, "$SYS.") {
		return errors.New("it is reserved for the server")
	}
	return nil
}
