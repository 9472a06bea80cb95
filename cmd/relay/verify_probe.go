package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// maxProbes limits the ids in memory and in queries.
const maxProbes = 1_000_000

// probeConfig are the flags of relay verify --events.
type probeConfig struct {
	events  int
	topic   string
	timeout time.Duration
}

// probeResult says what happened to the probes. Every id is in exactly one list, except
// Missing and Duplicates, which are about delivered ones.
type probeResult struct {
	Pipeline string `json:"pipeline"`
	Run      string `json:"run"`
	Topic    string `json:"topic"`
	Events   int    `json:"events"`

	Delivered int `json:"delivered"`
	// Waiting probes will be retried. Sending ones are leased, or delivered and not
	// deleted yet.
	Dead      []failedProbe `json:"dead"`
	Waiting   []failedProbe `json:"waiting"`
	Sending   []int64       `json:"sending"`
	Unclaimed []int64       `json:"unclaimed"`

	// Sink is what was read. If it is "", Unread says why.
	Sink   string `json:"sink,omitempty"`
	Unread string `json:"unread,omitempty"`
	// Missing probes were delivered but did not arrive, Duplicates ones arrived more than
	// once.
	Missing    []int64 `json:"missing"`
	Duplicates []int64 `json:"duplicates"`

	ids     []int64
	arrived map[int64]int
}

// failedProbe is a probe that was not delivered.
type failedProbe struct {
	ID    int64  `json:"id"`
	Error string `json:"error"`
}

// ok reports whether all probes were delivered and, as far as known, arrived once.
func (c *probeResult) ok() bool {
	return c.Delivered == c.Events && len(c.Missing) == 0 && len(c.Duplicates) == 0
}

// probe commits events, waits until a running relay has moved them, and accounts for
// each.
func (a *app) probe(ctx context.Context, p *config.Pipeline, what probeConfig, asJSON bool) (err error) {
	opened, err := p.Open(config.Process{Owner: "verify", Stdout: io.Discard, Log: discardLog})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	c := probeResult{
		Pipeline: p.Name, Run: uuid.NewString(), Topic: what.topic, Events: what.events,
		Dead: []failedProbe{}, Waiting: []failedProbe{}, Sending: []int64{}, Unclaimed: []int64{}, Missing: []int64{}, Duplicates: []int64{},
		arrived: map[int64]int{},
	}
	ctx, cancel := context.WithTimeout(ctx, what.timeout+diagnosisTimeout)
	defer cancel()
	if err := opened.Buffer.Check(ctx); err != nil {
		return err
	}
	reader, why, err := newSinkReader(ctx, p, opened.Sink, &outbox.Event{ID: 1, Topic: what.topic, Payload: []byte("{}")})
	switch {
	case err != nil: // the sink may be unavailable; the probes will show it
		c.Unread = a.redact(oneLine(err.Error()))
	case reader == nil:
		c.Unread = why
	}
	app, err := newApplication(ctx, &p.Source)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, app.close()) }()

	start := time.Now()
	if err := a.commit(ctx, app, &c); err != nil {
		return err
	}
	left, err := a.waitForProbes(ctx, app, &c, what.timeout)
	if err != nil {
		return err
	}
	if err := c.classify(ctx, p, opened.Buffer, left, time.Since(start)); err != nil {
		return err
	}
	if reader != nil {
		if err := c.countArrivals(ctx, reader); err != nil {
			c.Unread = a.redact(oneLine(err.Error()))
		}
	}
	a.failed = a.failed || !c.ok()
	if asJSON {
		return a.printJSON(&c)
	}
	_, err = io.WriteString(a.stdout, a.redact(c.String()))
	return err
}

// commit inserts the probes, 500 in a transaction.
func (a *app) commit(ctx context.Context, to *application, c *probeResult) error {
	const perTransaction = 500
	bar := newProgress(a.stderr, "committed")
	defer bar.end()
	for len(c.ids) < c.Events {
		events := make([]outbox.Event, min(perTransaction, c.Events-len(c.ids)))
		for i := range events {
			events[i] = outbox.Event{Topic: c.Topic, Payload: fmt.Appendf(nil, `{"relay_verify": %q, "n": %d}`, c.Run, len(c.ids)+i+1)}
		}
		ids, err := to.insert(ctx, events)
		if err != nil {
			return fmt.Errorf("committing probes (%d were committed): %w", len(c.ids), err)
		}
		c.ids = append(c.ids, ids...)
		bar.set(int64(len(c.ids)), int64(c.Events))
	}
	slices.Sort(c.ids)
	return nil
}

// waitForProbes waits until the buffer has no more probes or the timeout is over. It
// returns those that are left.
func (a *app) waitForProbes(ctx context.Context, from *application, c *probeResult, timeout time.Duration) ([]leftover, error) {
	bar := newProgress(a.stderr, "moved")
	defer bar.end()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for ids := c.ids; ; {
		start := time.Now()
		left, err := from.left(ctx, ids)
		if err != nil || len(left) == 0 {
			return nil, err
		}
		ids = make([]int64, len(left))
		for i := range left {
			ids[i] = left[i].id
		}
		bar.set(int64(c.Events-len(ids)), int64(c.Events))
		// The queries must not load the database.
		next := time.NewTimer(max(100*time.Millisecond, 4*time.Since(start)))
		select {
		case <-timer.C:
			next.Stop()
			return from.left(ctx, ids)
		case <-ctx.Done():
			next.Stop()
			return nil, ctx.Err()
		case <-next.C:
		}
	}
}

// classify puts every probe into its list. A probe that left the buffer was delivered
// unless it is a dead letter.
func (c *probeResult) classify(ctx context.Context, pipeline *config.Pipeline, b buffer.Buffer, left []leftover, took time.Duration) error {
	undelivered := map[int64]bool{}
	for _, l := range left {
		undelivered[l.id] = true
		switch l.state {
		case "":
			c.Unclaimed = append(c.Unclaimed, l.id)
		case "waiting", "lost":
			c.Waiting = append(c.Waiting, failedProbe{l.id, cmp.Or(l.err, "it has no ledger row; run relay verify --repair")})
		default:
			c.Sending = append(c.Sending, l.id)
		}
	}
	dead := deadLetters{DeadLetters: deadLettersOf(pipeline, b), pipeline: pipeline.Name, filter: buffer.DeadFilter{
		Topic: c.Topic, NewerThan: took + time.Minute, Closed: true,
	}}
	if err := dead.each(ctx, func(e *buffer.DeadEvent) (bool, error) {
		if _, ours := slices.BinarySearch(c.ids, e.ID); ours && !undelivered[e.ID] {
			undelivered[e.ID] = true
			c.Dead = append(c.Dead, failedProbe{e.ID, e.Error})
		}
		return true, nil
	}); err != nil {
		return err
	}
	c.Delivered = c.Events - len(undelivered)
	c.arrived = make(map[int64]int, c.Delivered)
	for _, id := range c.ids {
		if !undelivered[id] {
			c.arrived[id] = 0
		}
	}
	return nil
}

// countArrivals reads the sink and compares it with what was delivered.
func (c *probeResult) countArrivals(ctx context.Context, from sinkReader) error {
	arrivals := map[int64]int{}
	if err := from.arrivals(ctx, func(id int64) {
		if _, ours := slices.BinarySearch(c.ids, id); ours {
			arrivals[id]++
		}
	}); err != nil {
		return err
	}
	c.Sink = from.name()
	for _, id := range c.ids {
		_, delivered := c.arrived[id]
		switch n := arrivals[id]; {
		case n == 0 && delivered:
			c.Missing = append(c.Missing, id)
		case n > 1:
			c.Duplicates = append(c.Duplicates, id)
		}
	}
	return nil
}
