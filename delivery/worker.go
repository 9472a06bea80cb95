package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/tracing"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Observer receives what a worker does. Its methods are called by many goroutines and must be quick.
type Observer interface {
	// Sent: one attempt at the sink took so long, without the wait for a rate limit.
	Sent(l *buffer.Lease, took time.Duration)
	// Settled: the outcomes are written down; sent reports whether the batch was sent in
	// this attempt. nil IDs mean all of the batch.
	Settled(l *buffer.Lease, outcomes []buffer.Outcome, sent bool, took time.Duration)
	// Recovered: an address ("": the sink) accepts batches again after an outage, so those that
	// wait for it can be made due (buffer.Deferrer).
	Recovered(address string)
	// Accepts: the sink accepts events after it refused some, so those that are held can be made due
	// (buffer.Deferrer.RetryRefused).
	Accepts()
	// Hanging: so many calls of the sink do not return. Each needs a worker's place until it does.
	Hanging(calls int)
}

// Config of a worker. MaxAttempts, Backoff, Observer and Log are required.
type Config struct {
	// MaxAttempts is how often an event may be refused before it is buried.
	MaxAttempts int
	// NeverBury: a refused event is retried for ever.
	NeverBury bool
	// Backoff says how long to wait before a retry.
	Backoff Backoff
	// Ordered keeps order by key: when a batch is sent again in part, no event overtakes an
	// earlier one of its key.
	Ordered bool
	// SendTimeout bounds every Send; 30 s when 0.
	SendTimeout time.Duration
	// SendGrace is how long a Send may go on after its context has ended; 10 s when 0. Then it is given up.
	SendGrace time.Duration
	Observer  Observer
	// Redact removes secrets from the reasons that a settle stores; nil changes nothing.
	Redact func(text string) string
	// Log takes one DEBUG line a batch, WARN for a retry, ERROR for a dead letter.
	Log *slog.Logger
	// Tracer makes the spans of sends and settles, as children of the span in the context of Work; nil makes none.
	Tracer *tracing.Tracer
}

// Worker sends batches and settles them. Safe for concurrent use; one Worker serves all
// the goroutines of a pipeline.
type Worker struct {
	sink        sink.Sink
	addresser   sink.Addresser // nil if all events go to one address
	preparer    sink.Preparer  // nil if Send has to wait for nothing
	settler     buffer.Settler
	config      Config
	policy      policy
	breakers    breakers
	poison      poisonDetector
	asked       askedDetector
	refusals    refusals
	failedReads failedReads
	unsettled   unsettled
	hung        hungCalls
	lastOutage  atomic.Pointer[error]
	// hungChecks is how many calls of the sink's Check do not return.
	hungChecks atomic.Int32
	kept       keptBatches
	failing    failingSettles

	draining context.Context //nolint:containedctx // the worker's own, which Drain ends
	drain    context.CancelFunc
}

// NewWorker makes a worker between a sink and the buffer its batches come from.
func NewWorker(s sink.Sink, settler buffer.Settler, c Config) *Worker {
	if c.SendTimeout == 0 {
		c.SendTimeout = 30 * time.Second
	}
	if c.SendGrace == 0 {
		c.SendGrace = 10 * time.Second
	}
	if c.Redact == nil {
		c.Redact = func(text string) string { return text }
	}
	w := &Worker{
		sink: s, settler: settler, config: c,
		policy:   policy{c.MaxAttempts, c.NeverBury, c.Ordered, c.Backoff},
		breakers: breakers{recovered: c.Observer.Recovered},
		refusals: refusals{tries: tries{pace: c.Backoff}},
	}
	if a, ok := s.(sink.Addresser); ok && !a.OneAddress() {
		w.addresser = a
	}
	w.preparer, _ = s.(sink.Preparer)
	w.draining, w.drain = context.WithCancel(context.Background())
	return w
}

// Drain releases the batches whose request waits for a rate limit, and those that
// come to wait from now on. A request that has begun is finished.
func (w *Worker) Drain() { w.drain() }

// AcquireSlot waits until a batch may be sent, so that batches can be claimed ahead; release
// gives the slot back. ok is false when ctx is done or the relay stops: the batch is released
// unsent. nil: the batch has its slot already.
type AcquireSlot func(ctx context.Context) (release func(), ok bool)

// Report is how the work on a batch went.
type Report struct {
	// PutBack: a batch of these events waits, due after DueIn.
	PutBack bool
	DueIn   time.Duration
	// PassedOver: it was not sent, because a batch behind it is tried.
	PassedOver bool
	// TriesOne: it was not sent, and its first event is a batch now, due at once, which is to be sent next.
	TriesOne bool
	// Halved is a batch that the sink refused, and whose parts are due at once; nil: it was not halved. See [Worker.BeginSearch].
	Halved *Halved
	// WasRefused: so it, or a batch that it was a part of, was before, by an answer that this worker got.
	WasRefused bool
	// Sent and Settled are how long the Send and the settle took; 0 if there was none.
	Sent, Settled time.Duration
	// Answer is what the Send said of the limits on batches.
	Answer Answer
}

// attempt is what one lease of a batch comes to.
type attempt struct {
	outcomes []buffer.Outcome
	deferred bool // not sent, because its address or the sink is unavailable
	unsent   bool // not sent, so nothing is known of a suspect
	passed   bool // not sent, because a batch behind it is tried
	tried    bool // not sent, because its first event is tried alone
	deletes  bool // what was delivered is deleted after this
	again    bool // decided before, and refused by the database
	sent     bool // or tried to be
	// unprojected: it waits because of its own data, until another event is accepted.
	unprojected bool
	halved      *Halved
	took        time.Duration // by the Send
	answer      Answer
}

// Work sends the batch and settles it. leaseCtx ends when the lease is lost: nothing more is
// sent then, and what was sent is still settled, if the fence allows it. stop ends
// when the process has no time left to settle. The error is why the batch could not be
// settled; its lease, or the record of its delivery, brings it back.
//
// unsettled, if it is not nil, is called when the first try to settle has failed. Others need not wait for the batch
// from then on: nothing of it is at the sink, and its database may be away for hours.
//
// A panic beside the sink and the settle, which have their own recovery, leaves the batch to its lease: it is a suspect
// then, as if the process had died.
func (w *Worker) Work(leaseCtx, stop context.Context, l *buffer.Lease, slot AcquireSlot, unsettled func()) (r Report, err error) {
	err = Guard(func() error {
		r, err = w.work(leaseCtx, stop, l, slot, unsettled)
		return err
	})
	LogPanic(leaseCtx, w.config.Log, "the work on a batch", err, "group_id", l.GroupID)
	return r, err
}

func (w *Worker) work(leaseCtx, stop context.Context, l *buffer.Lease, slot AcquireSlot, unsettled func()) (Report, error) {
	wasRefused := w.refusals.knows(l.GroupID)
	a, err := w.attempt(leaseCtx, l, slot)
	if err != nil {
		return Report{}, err
	}
	if a.unsent {
		staySuspect(l, a.outcomes)
	}
	if a.sent {
		tried(a.outcomes)
	}
	if !a.again {
		w.log(leaseCtx, l, &a)
	}
	w.config.Tracer.Outcomes(leaseCtx, l, a.outcomes)
	r := Report{Sent: a.took, Answer: a.answer, PassedOver: a.passed, TriesOne: a.tried, WasRefused: wasRefused}
	began := time.Now()
	if err := w.settle(leaseCtx, stop, l, a.outcomes, unsettled); err != nil {
		if errors.Is(err, buffer.ErrLocked) {
			r.PutBack, r.DueIn = true, time.Second
			return r, nil
		}
		if retryIn, ok := keptFor(err); ok {
			w.kept.add(l.GroupID, err, deliveredFor(l, err), retryIn, func() {
				w.config.Log.ErrorContext(leaseCtx, err.Error(), "group_id", l.GroupID, "retry_in", retryIn)
			})
			r.PutBack, r.DueIn = true, retryIn
			return r, nil
		}
		return r, err
	}
	switch {
	case a.deletes:
		r.PutBack, r.DueIn = true, time.Second
	case a.again:
		w.kept.remove(append(slices.Clone(l.Origins), l.GroupID)...) // it was refused under one of these
	default:
		w.kept.remove(l.GroupID)
	}
	r.Settled, r.Halved = time.Since(began), a.halved
	if w.refusals.overdue(a.outcomes) {
		w.config.Observer.Accepts()
	}
	switch {
	case !a.unprojected:
		w.refusals.forgetProjection(l.GroupID)
	case w.refusals.acceptedSinceProjection(l.GroupID): // during the settle
		w.config.Observer.Recovered("")
	}
	w.config.Observer.Settled(l, a.outcomes, a.sent, r.Settled)
	for i := range a.outcomes {
		if o := &a.outcomes[i]; o.Verdict == buffer.Retry && (!r.PutBack || o.After < r.DueIn) {
			r.PutBack, r.DueIn = true, o.After
		}
	}
	return r, nil
}

// attempt finds out what becomes of every event of the batch: without a Send where there is
// nothing to send, otherwise by the Send's result.
func (w *Worker) attempt(ctx context.Context, l *buffer.Lease, slot AcquireSlot) (attempt, error) {
	// Of a batch whose events are unknown nothing is finished: its ledger row would go, and its events would be claimed again.
	if ids := w.unsettled.accepted(l.GroupID); len(ids) > 0 && !l.DeliveryRecorded() && !eventsUnknown(l) {
		return attempt{outcomes: w.policy.finishDelivered(l, ids)}, nil
	}
	switch {
	case errors.Is(l.NotRead, buffer.ErrKillsReader):
		return attempt{outcomes: w.crashLooping(ctx, l), unsent: true}, nil
	case l.NotRead != nil && !l.DeliveryRecorded(): // it may say nothing of its events
		return attempt{outcomes: w.divide(l), unsent: true}, nil
	}
	w.failedReads.forget(l.GroupID)
	switch {
	case l.Len() == 0: // only the ledger row is left
		if !l.DeliveryRecorded() {
			w.config.Log.WarnContext(ctx, "no event of a batch is left, and none was delivered: the application deleted them, or the table was replaced",
				"group_id", l.GroupID, "events", l.Counted, "first_id", l.FirstID)
		}
		return attempt{outcomes: []buffer.Outcome{{Verdict: buffer.Delivered}}}, nil
	case l.DeliveryRecorded():
		if rest := w.policy.freeRest(l); rest != nil {
			return attempt{outcomes: rest, deletes: true}, nil
		}
		return attempt{outcomes: w.policy.finishDelivered(l, l.Delivered)}, nil
	case crashLoops(l):
		return attempt{outcomes: w.crashLooping(ctx, l), unsent: true}, nil
	}
	if outcomes := w.unsettled.refused(l.GroupID); outcomes != nil {
		return attempt{outcomes: outcomes, again: true}, nil
	}
	if outcomes := w.policy.decideRejected(l, w.refusals.acceptedSinceProjection(l.GroupID)); outcomes != nil {
		return attempt{outcomes: outcomes, unsent: true}, nil
	}
	if slot != nil {
		release, ok := slot(ctx)
		if !ok {
			return w.released(ctx, l)
		}
		defer release()
	}
	// Not before: what was recorded while the batch waited for its slot counts.
	if outcomes := w.deferUnavailable(l); outcomes != nil {
		return attempt{outcomes: outcomes, deferred: true, unsent: true}, nil
	}
	if wait, err := w.refusals.passesOver(l); err != nil {
		return attempt{outcomes: []buffer.Outcome{passedOver(l, wait, w.latest(err))}, deferred: true, unsent: true, passed: true}, nil
	}
	if r := w.refusals.decided(l); r != nil {
		was := *l
		was.Attempts-- // it counted while it was held
		outcomes := w.policy.decide(&was, *r)
		w.refusals.remember(l, r, outcomes, time.Now())
		return attempt{outcomes: outcomes, unsent: true}, nil
	}
	if wait, err := w.refusals.triesOne(l); err != nil && !w.policy.ordered {
		return attempt{outcomes: tryOne(l, wait, w.latest(err)), deferred: true, unsent: true, tried: true}, nil
	}
	w.refusals.sending(l.GroupID, true)
	r, began, ok := w.send(ctx, l)
	took := time.Since(began)
	w.refusals.sending(l.GroupID, false)
	if !ok {
		return w.released(ctx, l)
	}
	w.config.Observer.Sent(l, took)
	switch {
	case r.fenced:
		return attempt{}, fmt.Errorf("batch %s: %w", l.GroupID, sink.ErrFenced)
	case leaseLost(ctx) && !r.settlesAnyway():
		return attempt{}, fmt.Errorf("batch %s: %w", l.GroupID, buffer.ErrLeaseLost)
	}
	a := attempt{sent: true, unsent: r.split != nil || projectionFailed(l) != nil, took: took, answer: r.answer()}
	if a.unprojected = r.isOutage() && failsForItsData(l); a.unprojected {
		w.refusals.projectionFailed(l.GroupID)
	}
	r = w.record(ctx, l, r, began)
	w.noteOutage(&r)
	named := l // as its events are counted, if the sink names them
	if r.each != nil && w.refusals.onlyAsWhole(l.GroupID) {
		own := *l
		own.Attempts = 0
		named = &own
	}
	a.outcomes = w.policy.decide(named, r)
	if r.split != nil || r.has(rejected) {
		a.halved = w.refusals.remember(l, &r, a.outcomes, began)
	}
	if (r.poison || r.divide) && len(a.outcomes) > 1 {
		if r.whole.asked {
			w.asked.inherit(l.GroupID, a.outcomes)
		} else {
			w.poison.inherit(l.GroupID, a.outcomes)
		}
	}
	return a, nil
}

// tried marks the outcomes that belong to the history of their events. Parts of a batch that was only divided for its size or its addresses have no error.
func tried(outcomes []buffer.Outcome) {
	for i := range outcomes {
		o := &outcomes[i]
		o.Tried = o.Verdict != buffer.Delivered && o.Error != ""
	}
}

// released is the attempt of a batch that the relay stops before it is sent.
func (w *Worker) released(ctx context.Context, l *buffer.Lease) (attempt, error) {
	if leaseLost(ctx) {
		return attempt{}, fmt.Errorf("batch %s: %w", l.GroupID, buffer.ErrLeaseLost)
	}
	return attempt{outcomes: released(l), unsent: true}, nil
}

func leaseLost(ctx context.Context) bool { return errors.Is(context.Cause(ctx), buffer.ErrLeaseLost) }

// send sends the batch and interprets what the sink said. The request began then, after its wait for a
// rate limit. ok is false when the relay stopped during that wait: nothing was sent.
func (w *Worker) send(ctx context.Context, l *buffer.Lease) (r result, began time.Time, ok bool) {
	began = time.Now()
	if err := projectionFailed(l); err != nil { // wait, as for an outage
		mayBePoison := !errors.Is(err, buffer.ErrDatabaseUnavailable)
		return result{whole: verdict{kind: unavailable, mayBePoison: mayBePoison, err: err}}, began, true
	}
	l.MaybeSent = l.Outages > 0 || maybeSent(l)
	l.AskedAlone = w.askedAlone(l)
	l.FirstSend = l.Attempts == 0 && !l.MaybeSent
	sendCtx, cancel := context.WithTimeout(ctx, w.config.SendTimeout)
	defer cancel()
	waited, err := callSink(w, ctx, sendCtx, l, func() (time.Duration, error) { return w.prepareAndSend(sendCtx, &l.Batch) })
	began = began.Add(waited)
	if errors.Is(err, errDraining) {
		return result{}, began, false
	}
	r = interpret(&l.Batch, err, w.addressOf)
	if r.hung = errors.Is(err, errHung); r.hung { // no batch is blamed for what its library does
		return r, began, true
	}
	if err != nil && r.each == nil && r.split == nil {
		switch {
		case ctx.Err() != nil: // cut off
			r = r.outage(false)
		case sendCtx.Err() != nil:
			r = r.outage(true)
		}
	}
	return r, began, true
}

// askedAlone reports whether a pause that the sink asks for is that of the batch: it was asked alone, or its 5xx are its own.
func (w *Worker) askedAlone(l *buffer.Lease) bool {
	if !w.asked.any() && !w.poison.any() {
		return false
	}
	address, one := w.onlyAddress(l)
	alone := l.Len() == 1
	return alone && (w.asked.knows(l.GroupID, "") || w.poison.blames(l.GroupID)) || one && w.asked.knows(uuid.Nil, address)
}

var errDraining = errors.New("the relay stops")

// prepareAndSend returns how long the request waited for a rate limit, and what the sink said.
func (w *Worker) prepareAndSend(ctx context.Context, b *buffer.Batch) (waited time.Duration, err error) {
	if w.preparer == nil {
		return 0, w.traceSend(ctx, b, w.sink.Send)
	}
	request, err := w.preparer.Prepare(ctx, b)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	acquireCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(w.draining, func() { cancel(errDraining) })()
	err = request.Acquire(acquireCtx)
	waited = time.Since(began)
	switch {
	case err == nil:
		return waited, w.traceSend(ctx, b, func(ctx context.Context, _ *buffer.Batch) error { return request.Send(ctx) })
	case errors.Is(context.Cause(acquireCtx), errDraining):
		return waited, errDraining
	}
	return waited, err
}

// log writes a line an outcome: ERROR for dead letters, WARN for a retry, DEBUG for what was
// delivered, deferred or is due at once.
func (w *Worker) log(ctx context.Context, l *buffer.Lease, a *attempt) {
	for i := range a.outcomes {
		o := &a.outcomes[i]
		level, text := slog.LevelDebug, "batch delivered"
		switch {
		case o.Verdict == buffer.Dead:
			level, text = slog.LevelError, "events became dead letters"
		case o.Verdict == buffer.Delivered:
		case a.deferred, o.After == 0 && o.Error == "":
			text = "events scheduled for retry"
		case o.After == 0: // halved; one line for all of the batch
			text = "batch split"
			if i == 0 {
				level = slog.LevelWarn
			}
		default:
			level, text = slog.LevelWarn, "delivery failed, will retry"
		}
		if !w.config.Log.Enabled(ctx, level) {
			continue
		}
		events, first := l.Len(), l.FirstID
		if o.IDs != nil {
			events, first = len(o.IDs), 0
			if len(o.IDs) > 0 {
				first = o.IDs[0]
			}
		}
		attrs := []slog.Attr{
			slog.String("group_id", l.GroupID.String()), slog.Int("events", events), slog.Any("first_id", l.LogID(first)),
		}
		if o.Verdict == buffer.Retry {
			attrs = append(attrs, slog.Duration("retry_in", o.After.Round(time.Millisecond)))
		}
		if o.Verdict != buffer.Delivered {
			attrs = append(attrs, slog.Int("attempts", o.Attempts), slog.String("error", o.Error))
		}
		w.config.Log.LogAttrs(ctx, level, text, attrs...)
	}
}

// Allow returns how many batches may be claimed for the sink: any number (math.MaxInt), none, or
// one: for a half-open probe, or to be passed over by one. It may call the sink's Check and take up to five seconds.
func (w *Worker) Allow(ctx context.Context) int {
	allowed := w.breakers.allow(ctx, w.Check)
	if allowed == 0 {
		return 0
	}
	return min(allowed, w.refusals.allow())
}

// Searching reports whether a search goes on: the sink may still refuse these events only. first: so many were refused that no other batch is sent until the
// search has come to an event alone.
func (w *Worker) Searching() (goesOn, first bool) {
	if w.breakers.outage() != nil {
		return false, false
	}
	return w.refusals.searching()
}

// TakesAll reports whether any number of batches may be claimed for the sink; atOnce: and sent at the same time. It calls nothing of the sink.
func (w *Worker) TakesAll() (all, atOnce bool) {
	if w.breakers.outage() != nil {
		return false, false
	}
	return w.refusals.takesAll()
}

// ProbesDue returns for which of the addresses that batches wait for (buffer.Deferrer) it is
// time to make one batch due, as a half-open probe. Of those that are likely to time out no more are under way than half of the workers.
func (w *Worker) ProbesDue(deferred []string, workers int) []string {
	return w.breakers.probesDue(deferred, max(1, workers/2))
}

// Probes reports whether each of the addresses that batches wait for is tried every second or so. A batch that fails again although others were accepted after
// its first failure waits until it is due.
func (w *Worker) Probes(deferred []string) bool { return w.breakers.probes(deferred) }

// Refusal is why the sink is taken to refuse everything; nil if it is not.
func (w *Worker) Refusal() error { return w.refusals.err() }

// AcceptedLately reports whether the sink accepted an event in the last minute. While Refusal is not nil, it says that the sink may refuse some events only.
func (w *Worker) AcceptedLately() bool { return w.refusals.acceptedOthers() }

// HoldsBad reports whether batches wait because of their own data, as far as this process knows, and not for a sink that is away: the projection
// fails for each of their events, and none has shown since that it works for others; or the sink refused them, and they are tried again.
func (w *Worker) HoldsBad() bool {
	if err := w.breakers.outage(); err != nil && !errors.Is(err, ErrProjection) {
		return false
	}
	return w.refusals.holdsUnprojected() || w.refusals.heldSince(time.Now().Add(-2*w.config.Backoff.Max))
}

// Paused reports whether a batch that is due may have to wait, for the sink or for its address.
func (w *Worker) Paused() bool {
	return w.breakers.any() || w.breakers.outage() != nil || w.refusals.err() != nil
}

// TryNow ends all pauses: the next batches are tries, whatever the sink asked for.
func (w *Worker) TryNow() {
	w.breakers.tryNow()
	w.refusals.tryNow()
	if r, ok := w.sink.(sink.Resumer); ok {
		r.Resume()
	}
}

// Outage is why the sink is taken to be unavailable; nil if it is not.
func (w *Worker) Outage() error { return w.breakers.outage() }

// LastOutage returns why the last send delivered nothing, if the sink or each address of its events was unavailable; otherwise nil. errors.Is finds in it what
// the sink said, such as [sink.ErrFull]. While one address of many is unavailable, Outage is nil.
func (w *Worker) LastOutage() error {
	if err := w.lastOutage.Load(); err != nil {
		return *err
	}
	return nil
}

// latest returns why the last send delivered nothing, if that was an outage: the refusal before may be over, although this process has had nothing accepted since.
func (w *Worker) latest(refusal error) error {
	if outage := w.LastOutage(); outage != nil {
		return outage
	}
	return refusal
}

// noteOutage keeps the result of a send for LastOutage.
func (w *Worker) noteOutage(r *result) {
	err := r.outageErr()
	if err == nil {
		w.lastOutage.Store(nil)
		return
	}
	w.lastOutage.Store(&err)
}
