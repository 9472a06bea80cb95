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

// maxProbes bounds the ids that are kept and asked for.
const maxProbes = 1_000_000

// probeConfig says what `relay verify --events` sends.
type probeConfig struct {
	events  int
	topic   string
	timeout time.Duration
}

// probed is what became of the probes; every id is in exactly one of the lists but the
// last two.
type probed struct {
	Pipeline string `json:"pipeline"`
	Run      string `json:"run"`
	Topic    string `json:"topic"`
	Events   int    `json:"events"`

	Delivered int `json:"delivered"`
	// ListDead were buried, Waiting are to be sent again, Sending are leased, or lack only
	// their delete, Unclaimed were touched by nobody.
	Dead      []fate  `json:"dead"`
	Waiting   []fate  `json:"waiting"`
	Sending   []int64 `json:"sending"`
	Unclaimed []int64 `json:"unclaimed"`

	// Sink is what was read, "" when nothing could be, and Unread says why.
	Sink   string `json:"sink,omitempty"`
	Unread string `json:"unread,omitempty"`
	// Missing were delivered and are not at the sink, Twice are there more than once.
	Missing []int64 `json:"missing"`
	Twice   []int64 `json:"twice"`

	ids     []int64
	arrived map[int64]int
}

// fate is an event and why it did not arrive.
type fate struct {
	ID  int64  `json:"id"`
	Why string `json:"error"`
}

// good tells whether all were delivered and, as far as it is known, arrived once.
func (c *probed) good() bool {
	return c.Delivered == c.Events && len(c.Missing) == 0 && len(c.Twice) == 0
}

// probe commits events, waits for a running relay to move them, and accounts for each.
func (a *app) probe(ctx context.Context, p *config.Pipeline, what probeConfig, asJSON bool) (err error) {
	line, err := p.Open(probeProcess)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, line.Close()) }()
	c := probed{
		Pipeline: p.Name, Run: uuid.NewString(), Topic: what.topic, Events: what.events,
		Dead: []fate{}, Waiting: []fate{}, Sending: []int64{}, Unclaimed: []int64{}, Missing: []int64{}, Twice: []int64{},
		arrived: map[int64]int{},
	}
	ctx, cancel := context.WithTimeout(ctx, what.timeout+examinationTime)
	defer cancel()
	if err := line.Buffer.Check(ctx); err != nil {
		return err
	}
	from, why, err := newReadBack(ctx, p, line.Sink, &outbox.Event{ID: 1, Topic: what.topic, Payload: []byte("{}")})
	switch {
	case err != nil: // the sink is away: whatever comes of it is what is to be found out
		c.Unread = a.redact(oneLine(err.Error()))
	case from == nil:
		c.Unread = why
	default:
		defer from.close()
	}
	app, err := newApplication(ctx, &p.Source)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, app.close(context.WithoutCancel(ctx))) }()

	began := time.Now()
	if err := a.commit(ctx, app, &c); err != nil {
		return err
	}
	left, err := a.await(ctx, app, &c, what.timeout)
	if err != nil {
		return err
	}
	if err := c.sort(ctx, p, line.Buffer, left, time.Since(began)); err != nil {
		return err
	}
	if from != nil {
		if err := c.count(ctx, from); err != nil {
			c.Unread = a.redact(oneLine(err.Error()))
		}
	}
	a.failed = a.failed || !c.good()
	if asJSON {
		return a.printJSON(&c)
	}
	_, err = io.WriteString(a.stdout, a.redact(c.String()))
	return err
}

var probeProcess = config.Process{Owner: "verify", Stdout: io.Discard, Log: silent}

// commit inserts the probes as an application would, 500 a transaction.
func (a *app) commit(ctx context.Context, to application, c *probed) error {
	const atOnce = 500
	bar := newProgress(a.stderr, "committed")
	defer bar.end()
	for len(c.ids) < c.Events {
		events := make([]outbox.Event, min(atOnce, c.Events-len(c.ids)))
		for i := range events {
			events[i] = outbox.Event{Topic: c.Topic, Payload: fmt.Appendf(nil, `{"relay_verify": %q, "n": %d}`, c.Run, len(c.ids)+i+1)}
		}
		ids, err := to.insert(ctx, events)
		if err != nil {
			return fmt.Errorf("committing probes (%d are committed): %w", len(c.ids), err)
		}
		c.ids = append(c.ids, ids...)
		bar.set(int64(len(c.ids)), int64(c.Events))
	}
	slices.Sort(c.ids)
	return nil
}

// await looks until the buffer has none of the probes any more, or the time is over, and
// returns those that are left.
func (a *app) await(ctx context.Context, from application, c *probed, timeout time.Duration) ([]leftover, error) {
	bar := newProgress(a.stderr, "gone")
	defer bar.end()
	over := time.NewTimer(timeout)
	defer over.Stop()
	for ids := c.ids; ; {
		asked := time.Now()
		left, err := from.left(ctx, ids)
		if err != nil || len(left) == 0 {
			return nil, err
		}
		ids = make([]int64, len(left))
		for i := range left {
			ids[i] = left[i].id
		}
		bar.set(int64(c.Events-len(ids)), int64(c.Events))
		// Not so often that it is the load.
		next := time.NewTimer(max(100*time.Millisecond, 4*time.Since(asked)))
		select {
		case <-over.C:
			next.Stop()
			return from.left(ctx, ids)
		case <-ctx.Done():
			next.Stop()
			return nil, ctx.Err()
		case <-next.C:
		}
	}
}

// sort puts every probe where it belongs. What is gone from the buffer was delivered
// unless it is a dead letter.
func (c *probed) sort(ctx context.Context, pipeline *config.Pipeline, b config.Buffer, left []leftover, took time.Duration) error {
	away := map[int64]bool{} // not delivered
	for _, l := range left {
		away[l.id] = true
		switch l.state {
		case "":
			c.Unclaimed = append(c.Unclaimed, l.id)
		case "waiting", "lost":
			c.Waiting = append(c.Waiting, fate{l.id, cmp.Or(l.why, "its ledger row is lost: relay verify --repair")})
		default:
			c.Sending = append(c.Sending, l.id)
		}
	}
	dead := letters{Letters: pipeline.Letters(b), pipeline: pipeline, filter: buffer.DeadFilter{
		Topic: c.Topic, NewerThan: took + time.Minute, Closed: true,
	}}
	if err := dead.each(ctx, func(e *outbox.Event) (bool, error) {
		if _, ours := slices.BinarySearch(c.ids, e.ID); ours && !away[e.ID] {
			away[e.ID] = true
			c.Dead = append(c.Dead, fate{e.ID, e.DeadLetter.Error})
		}
		return true, nil
	}); err != nil {
		return err
	}
	c.Delivered = c.Events - len(away)
	c.arrived = make(map[int64]int, c.Delivered)
	for _, id := range c.ids {
		if !away[id] {
			c.arrived[id] = 0
		}
	}
	return nil
}

// count reads the sink: what was delivered is to be there, and nothing twice.
func (c *probed) count(ctx context.Context, from readBack) error {
	there := map[int64]int{}
	if err := from.arrivals(ctx, func(id int64) {
		if _, ours := slices.BinarySearch(c.ids, id); ours {
			there[id]++
		}
	}); err != nil {
		return err
	}
	c.Sink = from.where()
	for _, id := range c.ids {
		_, delivered := c.arrived[id]
		switch n := there[id]; {
		case n == 0 && delivered:
			c.Missing = append(c.Missing, id)
		case n > 1:
			c.Twice = append(c.Twice, id)
		}
	}
	return nil
}
