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

// scope is whom an outage concerns.
type scope int

const (
	ofServer  scope = iota // whatever is sent there
	ofAddress              // what is sent to this stream or list
)

// outages are the codes of replies that say something of the server, or of the
// key, and nothing of the events.
var outages = map[string]scope{
	"ASK":         ofAddress,
	"BUSY":        ofServer,  // with someone's script
	"CLUSTERDOWN": ofAddress, // it may be its hash slot alone
	"DENIED":      ofServer,  // protected mode
	"LOADING":     ofServer,
	"MASTERDOWN":  ofServer,
	"MISCONF":     ofServer, // it cannot write to its disk
	"MOVED":       ofAddress,
	"NOAUTH":      ofServer,
	"NOPERM":      ofAddress,
	"NOREPLICAS":  ofServer,
	"NOSCRIPT":    ofServer,
	"OOM":         ofServer,
	"READONLY":    ofServer,
	"TRYAGAIN":    ofAddress,
	"WRONGPASS":   ofServer,
	"WRONGTYPE":   ofAddress,
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

// classify makes an outage of an error that is one, and says whose. A refusal stays
// what it is. What a script's call is answered with is never about an event, for
// the script catches that: it is a server that cannot run it.
func classify(err error, script bool) (scope, error) {
	word := code(err)
	whose, known := outages[word]
	switch {
	case word == "":
		return ofServer, sink.Unavailable(err) // no answer
	case known:
		return whose, sink.Unavailable(err)
	case script && !errors.Is(err, sink.ErrUnavailable):
		return ofServer, sink.Unavailable(err)
	}
	return ofAddress, err // a refusal, or the script says that it is an outage
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
	switch {
	case errors.Is(err, sink.ErrMaybePoison):
		return sink.MaybePoison(clean)
	case errors.Is(err, sink.ErrUnavailable):
		return sink.Unavailable(clean)
	}
	return clean
}
