package redissink

import (
	"errors"
	"strings"

	"github.com/outboxrelay/relay/sink"
)

// reply is an error that Redis answered a command with. Everything else that can
// go wrong is the connection's.
type reply struct{ error }

func (r reply) Unwrap() error { return r.error }

// outages are the codes of replies that say something of the server, or of the
// key, and nothing of the events.
var outages = map[string]bool{
	"ASK":         true,
	"BUSY":        true, // with someone's script
	"CLUSTERDOWN": true,
	"DENIED":      true, // protected mode
	"LOADING":     true,
	"MASTERDOWN":  true,
	"MISCONF":     true, // it cannot write to its disk
	"MOVED":       true,
	"NOAUTH":      true,
	"NOPERM":      true,
	"NOREPLICAS":  true,
	"NOSCRIPT":    true,
	"OOM":         true,
	"READONLY":    true,
	"TRYAGAIN":    true,
	"WRONGPASS":   true,
	"WRONGTYPE":   true,
}

// code is the first word of an error that Redis replied, "" for any other error.
func code(err error) string {
	var r reply
	if !errors.As(err, &r) {
		return ""
	}
	word, _, _ := strings.Cut(r.Error(), " ")
	return word
}

// classify says whether an error is an outage; a refusal stays what it is.
func classify(err error) error {
	var r reply
	if !errors.As(err, &r) || outages[code(err)] {
		return sink.Unavailable(err)
	}
	return err
}

// secret is a password that no text may show, not even when the server echoes
// what it was sent.
type secret string

func (s secret) redact(err error) error {
	text := err.Error()
	if s == "" || !strings.Contains(text, string(s)) {
		return err
	}
	clean := errors.New(strings.ReplaceAll(text, string(s), "***"))
	if errors.Is(err, sink.ErrUnavailable) {
		return sink.Unavailable(clean)
	}
	return clean
}
