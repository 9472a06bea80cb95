package admin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Pipeline is what the endpoint asks of a pipeline. Its methods are safe for
// concurrent use.
type Pipeline interface {
	Name() string
	// Ready returns nil, or why the pipeline does not get on.
	Ready() error
	Status(ctx context.Context) (buffer.Status, error)
	// Worst returns what holds its database furthest back, if that is worth a word.
	Worst() (buffer.VacuumBlocker, bool)
	// Limits are the events of a batch and the batches sent at once, as they are now.
	Limits() (batchSize, workers int)
	Letters
}

const (
	// fresh is how long a status serves: however often it is asked for, the
	// database sees one question in this time.
	fresh = time.Second
	// patience is how long a database may take to answer; less than what
	// Prometheus gives a scrape (10 s).
	patience = 3 * time.Second
)

// snapshot is a pipeline's latest status.
type snapshot struct {
	pipeline Pipeline
	// turn holds one token: who has it may ask the database.
	turn chan struct{}

	// Owned by whoever has the token.
	at     time.Time
	status buffer.Status
	err    error
}

func newSnapshot(p Pipeline) *snapshot {
	s := &snapshot{pipeline: p, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// read returns a status no older than fresh, or why there is none. It takes no
// longer than patience, and asks once for all who want to know at the same time.
func (s *snapshot) read(ctx context.Context) (buffer.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-s.turn:
	case <-ctx.Done():
		return buffer.Status{}, unanswered(ctx.Err())
	}
	defer func() { s.turn <- struct{}{} }()
	if s.at.IsZero() || time.Since(s.at) > fresh {
		status, err := s.pipeline.Status(ctx)
		if errors.Is(ctx.Err(), context.Canceled) { // whoever asked went away: that says nothing
			return status, err
		}
		s.status, s.err, s.at = status, unanswered(err), time.Now()
	}
	return s.status, s.err
}

func unanswered(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the database did not answer within %v: %w", patience, err)
	}
	return err
}

// snapshots are all pipelines' in their order.
type snapshots []*snapshot

// each reads all of them at the same time, so that a database that hangs holds up
// no other, and hands them to tell one after the other, in order.
func (all snapshots) each(ctx context.Context, tell func(Pipeline, buffer.Status, error)) {
	type answer struct {
		status buffer.Status
		err    error
	}
	answers := make([]answer, len(all))
	var wait sync.WaitGroup
	for i, s := range all {
		wait.Go(func() { answers[i].status, answers[i].err = s.read(ctx) })
	}
	wait.Wait()
	for i, s := range all {
		tell(s.pipeline, answers[i].status, answers[i].err)
	}
}
