package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// Settler is what a worker needs of a buffer.
type Settler interface {
	Settle(ctx context.Context, b *outbox.Batch, outcomes []outbox.Outcome) error
	Mark(ctx context.Context, b *outbox.Batch, delivered []int64) error
}

// Observer hears what a worker does. Its methods are called by many goroutines
// and must be quick.
type Observer interface {
	// Sent: one attempt at the sink took so long.
	Sent(b *outbox.Batch, took time.Duration)
	// Settled: the outcomes are written down; nil IDs mean all of the batch.
	Settled(b *outbox.Batch, outcomes []outbox.Outcome, took time.Duration)
}

// Config of a worker. MaxAttempts and Backoff are required.
type Config struct {
	// MaxAttempts is how often an event may be refused before it is buried.
	MaxAttempts int
	// Backoff says how long to wait before a retry.
	Backoff Backoff
	// SendTimeout bounds every Send; 30 s when 0.
	SendTimeout time.Duration
	// Observer may be nil.
	Observer Observer
	// Log takes one DEBUG line a batch, WARN for a retry, ERROR for a dead
	// letter; nil: slog.Default.
	Log *slog.Logger
}

// maxStarts is how many leases in a row may end without a word before a batch is
// taken for one that kills its workers, and halved.
const maxStarts = 3

// Worker sends batches and settles them. Safe for concurrent use; one Worker
// serves all the goroutines of a pipeline.
type Worker struct {
	sink    Sink
	settler Settler
	config  Config
	circuit circuit
}

// NewWorker makes a worker between a sink and the buffer its batches come from.
func NewWorker(s Sink, settler Settler, c Config) *Worker {
	if c.SendTimeout == 0 {
		c.SendTimeout = 30 * time.Second
	}
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return &Worker{sink: s, settler: settler, config: c}
}

type nobody struct{}

func (nobody) Sent(*outbox.Batch, time.Duration)                      {}
func (nobody) Settled(*outbox.Batch, []outbox.Outcome, time.Duration) {}

// Work sends b and settles it. held is done when the lease is lost: then nothing
// more is sent, and what was sent is still settled, if the fence lets it.
// stop is done when the process has no time left to settle. putBack tells that
// a batch of these events waits, due after dueIn. The error is why the batch
// could not be settled; its lease, or its mark, brings it back.
func (w *Worker) Work(held, stop context.Context, b *outbox.Batch) (putBack bool, dueIn time.Duration, err error) {
	outcomes, err := w.outcomes(held, b)
	if err != nil {
		return false, 0, err
	}
	w.tell(held, b, outcomes)
	began := time.Now()
	if err := w.settle(stop, b, outcomes); err != nil {
		if errors.Is(err, outbox.ErrLocked) {
			return true, time.Second, nil
		}
		return false, 0, err
	}
	w.config.Observer.Settled(b, outcomes, time.Since(began))
	for i := range outcomes {
		if o := &outcomes[i]; o.Verdict == outbox.Retry && (!putBack || o.After < dueIn) {
			putBack, dueIn = true, o.After
		}
	}
	return putBack, dueIn, nil
}

// outcomes finds out what becomes of every event of the batch.
func (w *Worker) outcomes(held context.Context, b *outbox.Batch) ([]outbox.Outcome, error) {
	switch {
	case len(b.Events) == 0: // somebody else deleted them: only the ledger row is left
		return []outbox.Outcome{{Verdict: outbox.Delivered}}, nil
	case b.Marked():
		return finishMarked(b), nil
	case b.Starts > maxStarts && len(b.Events) > 1:
		return halve(b, fmt.Sprintf("%d owners in a row did not finish this batch", b.Starts-1)), nil
	}
	ctx, cancel := context.WithTimeout(held, w.config.SendTimeout)
	defer cancel()
	began := time.Now()
	err := w.sink.Send(ctx, b)
	w.config.Observer.Sent(b, time.Since(began))
	_, partly := errors.AsType[*BatchError](err)
	switch {
	case errors.Is(err, ErrFenced):
		return nil, fmt.Errorf("batch %s: %w", b.GroupID, err)
	case err == nil || partly: // what was accepted is settled, lease or no lease
	case errors.Is(context.Cause(held), outbox.ErrLeaseLost):
		return nil, fmt.Errorf("batch %s: %w", b.GroupID, outbox.ErrLeaseLost)
	case ctx.Err() != nil:
		err = Unavailable(err) // cut off: nothing can be said about the events
	}
	if back := w.circuit.sent(b, err, w.config.Backoff); back {
		w.config.Log.InfoContext(held, "the sink takes batches again")
	}
	return w.judge(b, err), nil
}

const (
	settleTimeout = 15 * time.Second
	settleAgain   = 200 * time.Millisecond
	settleAtMost  = 5 * time.Second
	lastTry       = time.Second // for each step of a process that is out of time
	settleTries   = 5           // where the ledger knows all that a new owner needs
)

// settle writes the outcomes down and does not give up while the process may
// live. When it cannot (a lock, a connection lost in mid-commit), the ids that
// reached the sink are noted on the batch's own row, and only the delete is left
// for later.
func (w *Worker) settle(stop context.Context, b *outbox.Batch, outcomes []outbox.Outcome) error {
	delivered := deliveredIDs(b, outcomes)
	wait := settleAgain
	for tries := 1; ; tries++ {
		err := within(stop, func(ctx context.Context) error { return w.settler.Settle(ctx, b, outcomes) })
		if err == nil || errors.Is(err, outbox.ErrLeaseLost) || errors.Is(err, outbox.ErrLocked) {
			return err
		}
		w.config.Log.WarnContext(stop, "cannot settle a batch; trying again", "group_id", b.GroupID, "error", err)
		if len(delivered) > 0 && !b.Marked() {
			markErr := within(stop, func(ctx context.Context) error { return w.settler.Mark(ctx, b, delivered) })
			switch {
			case markErr == nil:
				return outbox.ErrLocked // its delete is done by whoever takes it over
			case errors.Is(markErr, outbox.ErrLeaseLost):
				return markErr // the settle went through after all, or another owner has it
			}
		}
		if (len(delivered) == 0 || b.Marked()) && tries == settleTries {
			return fmt.Errorf("batch %s was not settled, it will be taken over: %w", b.GroupID, err)
		}
		select {
		case <-stop.Done():
			return fmt.Errorf("batch %s was not settled, it will be taken over: %w", b.GroupID, err)
		case <-time.After(wait):
			wait = min(2*wait, settleAtMost)
		}
	}
}

// within runs one step of settling. What was sent is written down also after a
// signal, so the step does not end with stop, but lastTry after it.
func within(stop context.Context, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(stop), settleTimeout)
	defer cancel()
	defer context.AfterFunc(stop, func() { time.AfterFunc(lastTry, cancel) })()
	return step(ctx)
}

// tell logs what was decided: DEBUG a batch, WARN a retry, ERROR a dead letter.
func (w *Worker) tell(ctx context.Context, b *outbox.Batch, outcomes []outbox.Outcome) {
	for i := range outcomes {
		o := &outcomes[i]
		level, text := slog.LevelDebug, "batch delivered"
		switch o.Verdict {
		case outbox.Retry:
			level, text = slog.LevelWarn, "events are sent again later"
			if o.After == 0 && o.Error == "" {
				level = slog.LevelDebug
			}
		case outbox.Dead:
			level, text = slog.LevelError, "events are dead letters"
		}
		if !w.config.Log.Enabled(ctx, level) {
			continue
		}
		events, first := len(b.Events), b.FirstID
		if o.IDs != nil {
			events, first = len(o.IDs), 0
			if len(o.IDs) > 0 {
				first = o.IDs[0]
			}
		}
		attrs := []slog.Attr{
			slog.String("group_id", b.GroupID.String()), slog.Int("events", events), slog.Int64("first_id", first),
		}
		if o.Verdict != outbox.Delivered {
			attrs = append(attrs, slog.Int("attempts", o.Attempts), slog.Duration("after", o.After), slog.String("error", o.Error))
		}
		w.config.Log.LogAttrs(ctx, level, text, attrs...)
	}
}

// Allow tells how many batches the sink takes as far as is known: any number
// (math.MaxInt), none, or, during an outage now and then, one for a trial. The
// sink itself is asked before, so it may take up to five seconds.
func (w *Worker) Allow(ctx context.Context) int { return w.circuit.allow(ctx, w.sink) }

// Outage is why the sink is taken to be away; nil when it is not.
func (w *Worker) Outage() error { return w.circuit.outage() }
