package buffer

import (
	"context"
	"errors"
	"fmt"
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
	// events are routed to no such sink, and [ErrFillOrder] if the pipeline keeps order by key.
	FillSink(ctx context.Context, sink string, since time.Time, dry bool, progress func(Filled)) (Filled, error)
}

// ErrFillOrder refuses to fill a sink of a pipeline with `order: key`. It wraps errors.ErrUnsupported.
var ErrFillOrder = fmt.Errorf("earlier events would arrive behind later ones of their keys: %w", errors.ErrUnsupported)

// Filled counts the events that a sink got: those that were Waiting for another sink, and those that were Archived.
type Filled struct {
	Waiting, Archived int64
	// Rejected counts events of a custom table that were left out, because the projection returns no row, or a wrong one, for them.
	Rejected int64
	// Failed counts those of batches that were left out, because the projection fails on the data of an event: a later fill may give them. Err is
	// the first reason.
	Failed int64
	Err    error
	// NoArchive reports whether the archive was left out: that of a custom table has what was sent, not the rows.
	NoArchive bool
}

// Events is the sum of those that the sink got.
func (f Filled) Events() int64 { return f.Waiting + f.Archived }

// Add adds those of a part of the fill.
func (f *Filled) Add(more Filled) {
	f.Waiting += more.Waiting
	f.Archived += more.Archived
	f.Rejected += more.Rejected
	f.Failed += more.Failed
	f.NoArchive = f.NoArchive || more.NoArchive
	if f.Err == nil {
		f.Err = more.Err
	}
}

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
