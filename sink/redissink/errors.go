package redissink

import (
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/sink"
)

// reply is an error with which Redis replied to a command. All others are the connection's.
type reply struct{ error }

func (r reply) Unwrap() error { return r.error }

// scope is what an outage affects.
type scope int

const (
	serverScope  scope = iota // everything that is sent to the server
	addressScope              // events for this stream, list, channel or queue
)

// outages are the error codes that are about the server or the key, not about the events.
var outages = map[string]scope{
	"ASK":         addressScope,
	"BUSY":        serverScope,  // a script blocks it
	"CLUSTERDOWN": addressScope, // perhaps only the hash slot
	"DENIED":      serverScope,  // protected mode
	"LOADING":     serverScope,
	"MASTERDOWN":  serverScope,
	"MISCONF":     serverScope, // cannot write to its disk
	"MOVED":       addressScope,
	"NOAUTH":      serverScope,
	"NOPERM":      addressScope,
	"NOREPLICAS":  serverScope,
	"NOSCRIPT":    serverScope,
	"OOM":         serverScope,
	"READONLY":    serverScope,
	"TRYAGAIN":    addressScope,
	"WRONGPASS":   serverScope,
	"WRONGTYPE":   addressScope,
}

// code is the error code of a reply, "" for any other error.
func code(err error) string {
	var r reply
	if !errors.As(err, &r) {
		return ""
	}
	word, _, _ := strings.Cut(r.Error(), " ")
	return word
}

// classify wraps an outage with sink.ErrUnavailable and returns its scope. It returns a rejection as it is.
// An error reply to a script is never about an event, because scripts catch those errors: the server cannot
// run the script.
func classify(err error, script bool) (scope, error) {
	word := code(err)
	affected, known := outages[word]
	switch {
	case word == "":
		return serverScope, sink.Unavailable(withCause(err)) // no reply
	case known:
		return affected, sink.Unavailable(withCause(err))
	case script && !errors.Is(err, sink.ErrUnavailable):
		return serverScope, sink.Unavailable(err)
	}
	return addressScope, err // a rejection, or an outage that the script reported
}

// withCause has errors.Is find what somebody must correct before the outage ends, if the server says it.
func withCause(err error) error {
	word := code(err)
	switch {
	case redis.IsAuthError(err), redis.IsPermissionError(err), word == "NOAUTH", word == "WRONGPASS", word == "NOPERM": // the first as an answer to AUTH
		return sink.Access(err)
	case word == "OOM", word == "MISCONF":
		return sink.Full(err)
	}
	return err
}

// secrets are the passwords. No text may contain them, even if a server echoes them.
type secrets []string

func (s secrets) redact(err error) error {
	text := err.Error()
	for _, secret := range s {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	if text == err.Error() {
		return err
	}
	clean := errors.New(text)
	switch {
	case errors.Is(err, sink.ErrMaybePoison):
		return sink.MaybePoison(clean)
	case errors.Is(err, sink.ErrUnavailable):
		return sink.Unavailable(clean)
	}
	return clean
}
