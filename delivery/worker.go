package delivery

import (
	"context"
	"errors"
	"fmt"
	"github.com/outboxrelay/relay/sink"
	"log/slog"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Settler is what a worker needs of a buffer.
type Settler interface {
	Settle(ctx context.Context, b *buffer.Lease, outcomes []buffer.Outcome) error
	MarkDelivered(ctx context.Context, b *buffer.Lease, delivered []int64) error
}

// Observer hears what a worker does. Its methods are called by many goroutines
// and must be quick.
type Observer interface {
	// Sent: one attempt at the sink took so long, without the wait for a rate (Waited).
	Sent(b *buffer.Lease, took time.Duration)
	// Settled: the outcomes are written down; nil IDs mean all of the batch.
	Settled(b *buffer.Lease, outcomes []buffer.Outcome, took time.Duration)
}

// Config of a worker. MaxAttempts and Backoff are required.
type Config struct {
	// MaxAttempts is how often an event may be refused before it is buried.
	MaxAttempts int
	// NeverBury: what is refused is tried again, however often and whatever the
	// refusal.
	NeverBury bool
	// Backoff says how long to wait before a retry.
	Backoff Backoff
	// Ordered keeps order by key: of a batch that has to be sent again in part, no
	// event is parted from an earlier one of its key so that it could overtake it.
	Ordered bool
	// SendTimeout bounds every Send; 30 s when 0.
	SendTimeout time.Duration
	// Turn waits until the batch may be sent, so that batches can be claimed ahead;
	// done gives the turn back. It ends with ctx, and earlier when there will be no
	// turn: ok is false then, and the batch is handed back unsent. nil: at once.
	Turn func(ctx context.Context) (done func(), ok bool)
	// Back hears of an address that takes batches again after an outage, "" of the
	// sink as a whole, so that those which wait for it can be made due (RetryNow). It
	// must be quick; nil: nobody hears.
	Back func(address string)
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
	sink      sink.Sink
	addresser sink.Addresser // nil where all events go to one address
	settler   Settler
	config    Config
	circuits  circuits
	strikes   strikes
}

// NewWorker makes a worker between a sink and the buffer its batches come from.
func NewWorker(s sink.Sink, settler Settler, c Config) *Worker {
	if c.SendTimeout == 0 {
		c.SendTimeout = 30 * time.Second
	}
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Back == nil {
		c.Back = func(string) {}
	}
	if c.Turn == nil {
		c.Turn = func(context.Context) (func(), bool) { return func() {}, true }
	}
	w := &Worker{sink: s, settler: settler, config: c, circuits: circuits{back: c.Back}}
	if a, ok := s.(sink.Addresser); ok && !a.OneAddress() {
		w.addresser = a
	}
	return w
}

type nobody struct{}

func (nobody) Sent(*buffer.Lease, time.Duration)                      {}
func (nobody) Settled(*buffer.Lease, []buffer.Outcome, time.Duration) {}

// Done is how the work on a batch went.
type Done struct {
	// PutBack: a batch of these events waits, due after DueIn.
	PutBack bool
	DueIn   time.Duration
	// Sent and Settled are how long the Send and the settling took; 0 when there was
	// none. SendErr is what Send answered.
	Sent, Settled time.Duration
	SendErr       error
}

// Work sends b and settles it. held is done when the lease is lost: then nothing
// more is sent, and what was sent is still settled, if the fence lets it.
// stop is done when the process has no time left to settle. The error is why the
// batch could not be settled; its lease, or its mark, brings it back.
func (w *Worker) Work(held, stop context.Context, b *buffer.Lease) (Done, error) {
	var d Done
	outcomes, err := w.outcomes(held, b, &d)
	if err != nil {
		return d, err
	}
	w.tell(held, b, outcomes)
	began := time.Now()
	if err := w.settle(held, stop, b, outcomes); err != nil {
		if errors.Is(err, buffer.ErrLocked) {
			d.PutBack, d.DueIn = true, time.Second
			return d, nil
		}
		return d, err
	}
	d.Settled = time.Since(began)
	w.config.Observer.Settled(b, outcomes, d.Settled)
	for i := range outcomes {
		if o := &outcomes[i]; o.Verdict == buffer.Retry && (!d.PutBack || o.After < d.DueIn) {
			d.PutBack, d.DueIn = true, o.After
		}
	}
	return d, nil
}

// outcomes finds out what becomes of every event of the batch.
func (w *Worker) outcomes(held context.Context, b *buffer.Lease, d *Done) ([]buffer.Outcome, error) {
	switch {
	case len(b.Events) == 0: // somebody else deleted them: only the ledger row is left
		return []buffer.Outcome{{Verdict: buffer.Delivered}}, nil
	case b.DeliveryRecorded():
		return w.carry(b, finishMarked(b)), nil
	case missing(b):
		return unprojected(b), nil
	case b.UnfinishedLeases > maxStarts && wrong(b) == nil: // else it was the projection
		return w.unfinished(held, b), nil
	}
	done, ok := w.config.Turn(held)
	switch {
	case !ok && errors.Is(context.Cause(held), buffer.ErrLeaseLost):
		return nil, fmt.Errorf("batch %s: %w", b.GroupID, buffer.ErrLeaseLost)
	case !ok:
		return handedBack(b), nil
	}
	defer done()
	// Not before: what was heard of the sink while the batch waited counts.
	if aside := w.setAside(b); aside != nil {
		return aside, nil
	}
	ctx, cancel := context.WithTimeout(held, w.config.SendTimeout)
	defer cancel()
	ctx, waited := sink.WithWait(ctx)
	began := time.Now()
	err := w.send(ctx, b)
	switch {
	case !errors.Is(err, sink.ErrNotSent):
	case errors.Is(context.Cause(held), buffer.ErrLeaseLost):
		return nil, fmt.Errorf("batch %s: %w", b.GroupID, buffer.ErrLeaseLost)
	default:
		return handedBack(b), nil
	}
	d.Sent, d.SendErr = time.Since(began)-waited(), err
	w.config.Observer.Sent(b, d.Sent)
	_, partly := errors.AsType[*sink.BatchError](err)
	switch {
	case errors.Is(err, sink.ErrFenced):
		return nil, fmt.Errorf("batch %s: %w", b.GroupID, err)
	case err == nil || partly: // what was accepted is settled, lease or no lease
	case errors.Is(context.Cause(held), buffer.ErrLeaseLost):
		return nil, fmt.Errorf("batch %s: %w", b.GroupID, buffer.ErrLeaseLost)
	case held.Err() != nil:
		err = sink.Unavailable(err) // cut off: nothing can be said about the events
	case ctx.Err() != nil:
		err = sink.MaybePoison(err)
	}
	a := w.hear(held, b, err)
	if a.sinkIsBack {
		w.config.Log.InfoContext(held, "the sink takes batches again")
	}
	for _, address := range a.back {
		w.config.Log.InfoContext(held, "the address takes events again", "address", address)
	}
	return w.judge(b, a), nil
}

// tell logs what was decided: DEBUG a batch, WARN a retry, ERROR a dead letter.
func (w *Worker) tell(ctx context.Context, b *buffer.Lease, outcomes []buffer.Outcome) {
	for i := range outcomes {
		o := &outcomes[i]
		level, text := slog.LevelDebug, "batch delivered"
		switch o.Verdict {
		case buffer.Retry:
			level, text = slog.LevelWarn, "events are sent again later"
			switch {
			case o.After == 0 && o.Error == "" || strings.HasPrefix(o.Error, aside):
				level = slog.LevelDebug
			case o.After == 0: // halved: once for all of the batch
				text = "a batch is divided"
				if i > 0 {
					level = slog.LevelDebug
				}
			}
		case buffer.Dead:
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
		if o.Verdict != buffer.Delivered {
			attrs = append(attrs, slog.Int("attempts", o.Attempts), slog.Duration("after", o.After), slog.String("error", o.Error))
		}
		w.config.Log.LogAttrs(ctx, level, text, attrs...)
	}
}

// Allow tells how many batches the sink takes as far as is known: any number
// (math.MaxInt), none, or, during an outage now and then, one for a trial. The
// sink itself is asked before, so it may take up to five seconds.
func (w *Worker) Allow(ctx context.Context) int { return w.circuits.allow(ctx, w.sink) }

// Probe says for which of the addresses that batches wait for (see DeferredAddresses) it is time
// for a trial: one batch of each may be made due now (see RetryNow).
func (w *Worker) Probe(waitedFor []string) []string { return w.circuits.probe(waitedFor) }

// Outage is why the sink is taken to be away; nil when it is not.
func (w *Worker) Outage() error { return w.circuits.outage() }
