package buffer

import (
	"context"
	"regexp"
	"strings"
	"time"
)

// SinkFiller gives a sink events that were routed before it was in the registry, or while it was dropped.
type SinkFiller interface {
	// FillSink gives a sink every event that it takes, was created since a time and was never routed to it: those that still wait for another sink,
	// and those in the archive if there is one. An event that it got by a fill is not given to it again. With dry it changes nothing and counts what
	// it would give. progress, which may be nil, is called with the sum so far.
	//
	// It works beside relays and other fills, in several transactions. After an error, or a kill, call it again. The error is a [*NoSinkError] if
	// events are routed to no such sink, and wraps errors.ErrUnsupported if the table is a custom one.
	FillSink(ctx context.Context, sink string, since time.Time, dry bool, progress func(Filled)) (Filled, error)
}

// Filled counts the events that a sink got: those that Waited for another sink, and those that were Archived.
type Filled struct{ Waiting, Archived int64 }

// Events is the sum.
func (f Filled) Events() int64 { return f.Waiting + f.Archived }

// Regexps returns regular expressions, for PostgreSQL and Go, of which one or more match exactly the topics that the set does.
func (p Patterns) Regexps() []string {
	if len(p) == 0 {
		return []string{""}
	}
	all := make([]string, len(p))
	for i, one := range p {
		var tokens []string
		rest := "$"
		for j, token := range one {
			switch {
			case (token == "#" || token == ">") && j == 0:
				tokens, rest = []string{""}, ""
			case token == "#" || token == ">":
				rest = `\.`
			case token == "*":
				tokens = append(tokens, "[^.]*")
			default:
				tokens = append(tokens, regexp.QuoteMeta(token))
			}
		}
		all[i] = "^" + strings.Join(tokens, `\.`) + rest
	}
	return all
}
