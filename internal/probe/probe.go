// Package probe commits events to a pipeline's buffer, waits until a running relay has moved them, and accounts for
// each: delivered, dead, waiting or unclaimed, and how often it arrived at the sink.
package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	// MaxEvents limits the ids in memory and in queries.
	MaxEvents = 1_000_000
	// checkTimeout is how long the database and the sink may take before and after the wait.
	checkTimeout = 10 * time.Second
	// perTransaction is the number of probes in a transaction.
	perTransaction = 500
)

// Config of a run.
type Config struct {
	// Events is the number of probes, 1 to MaxEvents.
	Events int
	// Topic is their topic.
	Topic string
	// Timeout is how long to wait for a relay to move them.
	Timeout time.Duration
	// Progress is called with the name of a step and how many probes have passed it.
	Progress func(step string, done, total int64)
	// Idle is called once if no relay has claimed a probe for so long; none may be running.
	Idle func(after time.Duration)
}

// idleAfter is longer than a relay takes to find events, by default.
const idleAfter = 5 * time.Second

// ErrInterrupted is found in the error of a Run whose context was cancelled.
var ErrInterrupted = errors.New("interrupted")

// Result accounts for the probes. Every id is in exactly one list, except Missing and Duplicates, which are about
// delivered ones.
type Result struct {
	Pipeline string  `json:"pipeline"`
	Run      string  `json:"run"`
	Topic    string  `json:"topic"`
	Events   int     `json:"events"`
	IDs      []int64 `json:"-"` // ascending

	Delivered int `json:"delivered"`
	// Waiting probes will be retried. Sending ones are leased, or delivered and not deleted yet.
	Dead      []Failed `json:"dead"`
	Waiting   []Failed `json:"waiting"`
	Sending   []int64  `json:"sending"`
	Unclaimed []int64  `json:"unclaimed"`

	// Sink is what was read. If it is "", Unread says why.
	Sink   string `json:"sink,omitempty"`
	Unread string `json:"unread,omitempty"`
	// Missing probes were delivered but did not arrive, Duplicates ones arrived more than once.
	Missing    []int64 `json:"missing"`
	Duplicates []int64 `json:"duplicates"`

	undelivered map[int64]bool
}

// Failed is a probe that was not delivered.
type Failed struct {
	ID    int64  `json:"id"`
	Error string `json:"error"`
}

// OK reports whether all probes were delivered and, as far as known, arrived once.
func (r *Result) OK() bool {
	return r.Delivered == r.Events && len(r.Missing) == 0 && len(r.Duplicates) == 0
}

// Run commits probes and accounts for them. When ctx is cancelled, it deletes the probes that no relay has claimed
// yet. The errors and Unread may contain secrets.
func Run(ctx context.Context, p *config.Pipeline, c Config) (_ *Result, err error) {
	opened, err := p.Open(config.Process{Owner: "verify", Stdout: io.Discard, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	r := &Result{
		Pipeline: p.Name, Run: uuid.NewString(), Topic: c.Topic, Events: c.Events,
		Dead: []Failed{}, Waiting: []Failed{}, Sending: []int64{}, Unclaimed: []int64{}, Missing: []int64{}, Duplicates: []int64{},
		undelivered: map[int64]bool{},
	}
	interrupted := ctx
	ctx, cancel := context.WithTimeout(ctx, c.Timeout+checkTimeout)
	defer cancel()
	if err := opened.Buffer.Check(ctx); err != nil {
		return nil, err
	}
	var (
		reader sinkReader
		unread string
	)
	for _, s := range opened.Sinks { // the first that takes the topic and can be read
		if !s.Config.Takes(c.Topic) {
			continue
		}
		reader, unread, err = newSinkReader(ctx, s.Config, s.Sink, &outbox.Event{ID: 1, Topic: c.Topic, Payload: []byte("{}")})
		if err == nil && unread == "" {
			break
		}
	}
	if r.Unread = unread; err != nil { // the sink may be unavailable; the probes will show it
		r.Unread = err.Error()
	}
	app, err := newApplication(&p.Source)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, app.db.Close()) }()

	defer func() {
		if err != nil && interrupted.Err() != nil {
			err = cleanUp(interrupted, app, r.IDs)
		}
	}()
	start := time.Now()
	for len(r.IDs) < c.Events && ctx.Err() == nil {
		// Not ctx: a commit that is cut off may have happened, and its ids are unknown.
		ids, err := commit(ctx, app, c.Topic, r.Run, len(r.IDs)+1, min(len(r.IDs)+perTransaction, c.Events))
		if err != nil {
			return nil, fmt.Errorf("committing probes (%d were committed): %w", len(r.IDs), err)
		}
		r.IDs = append(r.IDs, ids...)
		c.Progress("committed", int64(len(r.IDs)), int64(c.Events))
	}
	slices.Sort(r.IDs)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	left, err := wait(ctx, app, r.IDs, c)
	if err != nil {
		return nil, err
	}
	dead := admin.DeadLetters{Store: opened.Buffer}
	if err := r.classify(ctx, dead, left, time.Since(start)); err != nil {
		return nil, err
	}
	if reader != nil {
		if err := r.countArrivals(ctx, reader); err != nil {
			r.Unread = err.Error()
		}
	}
	return r, nil
}

// commit commits probes even if ctx is cancelled meanwhile.
func commit(ctx context.Context, app *application, topic, run string, first, last int) ([]int64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
	defer cancel()
	return app.commit(ctx, topic, run, first, last)
}

// cleanUp deletes the probes that no relay has claimed, and says what became of the others.
func cleanUp(ctx context.Context, app *application, ids []int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
	defer cancel()
	removed, err := app.removeUnclaimed(ctx, ids)
	if err != nil {
		return fmt.Errorf("%w; deleting the unclaimed ones of %d probes failed, a relay will send them: %w", ErrInterrupted, len(ids), err)
	}
	switch claimed := int64(len(ids)) - removed; {
	case len(ids) == 0:
		return fmt.Errorf("%w before a probe was committed", ErrInterrupted)
	case claimed == 0:
		return fmt.Errorf("%w: deleted all probes (%d); no relay had claimed any", ErrInterrupted, removed)
	default:
		return fmt.Errorf("%w: deleted the unclaimed ones (%d) of %d probes; a relay has claimed the others (%d)", ErrInterrupted, removed, len(ids), claimed)
	}
}

// settleWithin is how long a relay has after the timeout to settle what it sends: a batch that waits for a sink that is away is sent every second or so, and
// meanwhile nothing says why it waits.
const settleWithin = checkTimeout / 2

// wait waits until the buffer has no more probes or the timeout is over; then, for settleWithin, until none is being sent. It returns those that are left.
func wait(ctx context.Context, app *application, ids []int64, c Config) ([]leftover, error) {
	timer := time.NewTimer(c.Timeout)
	defer timer.Stop()
	began, idle, over := time.Now(), true, false
	for {
		start := time.Now()
		left, err := app.leftovers(ctx, ids)
		if err != nil || len(left) == 0 {
			return nil, err
		}
		if over && (time.Since(began) > c.Timeout+settleWithin || !slices.ContainsFunc(left, func(l leftover) bool { return l.state == "leased" })) {
			return left, nil
		}
		idle = idle && len(left) == c.Events && !slices.ContainsFunc(left, func(l leftover) bool { return l.state != "" })
		if idle && start.Sub(began) >= idleAfter {
			c.Idle(idleAfter)
			idle = false // once
		}
		ids = make([]int64, len(left))
		for i := range left {
			ids[i] = left[i].id
		}
		c.Progress("moved", int64(c.Events-len(ids)), int64(c.Events))
		// The queries must not load the database.
		next := time.NewTimer(max(100*time.Millisecond, 4*time.Since(start)))
		select {
		case <-timer.C:
			next.Stop()
			over = true
		case <-ctx.Done():
			next.Stop()
			return nil, ctx.Err()
		case <-next.C:
		}
	}
}

// classify puts every probe into its list. A probe that left the buffer was delivered unless it is a dead letter.
func (r *Result) classify(ctx context.Context, dead admin.DeadLetters, left []leftover, took time.Duration) error {
	for _, l := range left {
		r.undelivered[l.id] = true
		switch l.state {
		case "":
			r.Unclaimed = append(r.Unclaimed, l.id)
		case "waiting", "lost":
			r.Waiting = append(r.Waiting, Failed{l.id, cmp.Or(l.err, "it has no ledger row; run relay verify --repair")})
		default:
			r.Sending = append(r.Sending, l.id)
		}
	}
	recent := buffer.DeadFilter{Topic: r.Topic, NewerThan: took + time.Minute, Closed: true}
	if err := dead.Each(ctx, recent, func(e *buffer.DeadEvent) (bool, error) {
		if _, ours := slices.BinarySearch(r.IDs, e.ID); ours && !r.undelivered[e.ID] {
			r.undelivered[e.ID] = true
			r.Dead = append(r.Dead, Failed{e.ID, e.Error})
		}
		return true, nil
	}); err != nil {
		return err
	}
	r.Delivered = r.Events - len(r.undelivered)
	return nil
}

// countArrivals reads the sink and compares it with what was delivered.
func (r *Result) countArrivals(ctx context.Context, from sinkReader) error {
	arrivals := map[int64]int{}
	if err := from.arrivals(ctx, func(id int64) { arrivals[id]++ }); err != nil {
		return err
	}
	r.Sink = from.name()
	for _, id := range r.IDs {
		switch n := arrivals[id]; {
		case n == 0 && !r.undelivered[id]:
			r.Missing = append(r.Missing, id)
		case n > 1:
			r.Duplicates = append(r.Duplicates, id)
		}
	}
	return nil
}
