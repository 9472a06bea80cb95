package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

var errStarting = errors.New("starting")

// NotReady is why a pipeline is not ready.
type NotReady struct {
	// class says it without data: everybody may read it.
	class string
	// kind is finer than the class; "" for none.
	kind string
	// err may quote events and what a server answered.
	err error
}

// The classes.
const (
	database = buffer.NotReadyDatabase
	atSink   = buffer.NotReadySink
	stalled  = buffer.NotReadyStalled
	refusing = buffer.NotReadyRefusing
)

func (e *NotReady) Error() string { return e.class + ": " + e.err.Error() }
func (e *NotReady) Unwrap() error { return e.err }

// Kind returns what the reason is in particular, one of the Kind constants of package buffer; otherwise the class.
func (e *NotReady) Kind() string { return cmp.Or(e.kind, e.class) }

// Class returns database, sink, stalled or refusing.
func (e *NotReady) Class() string { return e.class }

// classifyOutage returns why nothing is claimed, by what the last sends met. Programs and projections are part of the
// configuration: the sink is not to blame for them.
func classifyOutage(err error) *NotReady {
	switch {
	case errors.Is(err, sink.ErrProgram) && errors.Is(err, sink.ErrMaybeAccepted):
		return &NotReady{class: stalled, kind: buffer.KindAnswer, err: fmt.Errorf("a program of the sink fails: results does not expect the sink's answer, so the sink gets the same events again at each try; "+
			"if the answer is right, as after a wrong key, correct the sink's settings, otherwise results (relay preview --answer FILE --status N): %w", err)}
	case errors.Is(err, sink.ErrProgram):
		return &NotReady{class: stalled, kind: buffer.KindRequest, err: fmt.Errorf("a program of the sink fails: request, before anything is sent; "+
			"correct it (relay preview), or the events: %w", err)}
	case errors.Is(err, buffer.ErrDatabaseUnavailable):
		return &NotReady{class: database, err: err}
	case errors.Is(err, delivery.ErrProjection):
		return &NotReady{class: stalled, err: err}
	}
	if errors.Is(err, delivery.ErrAskedToWait) {
		return &NotReady{class: atSink, kind: buffer.KindAsked, err: err}
	}
	return &NotReady{class: atSink, kind: sinkKind(err), err: err}
}

// sinkKind is the kind of an outage of the sink; "" if it is only unavailable.
func sinkKind(err error) string {
	switch {
	case errors.Is(err, sink.ErrAccess):
		return buffer.KindAccess
	case errors.Is(err, sink.ErrFull):
		return buffer.KindFull
	}
	return ""
}

// health is what readiness is decided from.
type health struct {
	stalledAfter time.Duration

	mu              sync.Mutex
	bufferErr       error
	sinkErr         error
	claimErr        error // the last claim of fresh events failed, and there is something to claim
	dueErr          error // the last take-over failed
	writeErr        error // the database can be read, and takes no writes
	backpressureErr error // fresh events wait, and max_waiting keeps them from being claimed
	// undelivered counts sends in a row that got nothing through because the sink, or the
	// address they went to, was unavailable; one alone may be a hiccup. undeliveredErr is why, as it is settled. An answer that
	// refuses events ends the row.
	undelivered    int
	undeliveredErr string
	waiting        bool // batches wait, as last counted or settled
	waitingBatches int  // how many wait, or wait for their delete, as last counted
	queued         int  // how many are due that no worker has leased yet (buffer.Backlog.Unsent), as last counted, with those announced and without those taken over since
	// freshSince and dueSince are when unclaimed events, and due batches, were first counted
	// without any progress since; zero if none.
	freshSince, dueSince time.Time
	stuck                stuckBatches

	// Another relay may have delivered what this one could not, and then this one has nothing to try the sink with.
	inFlight     int       // batches that this process works on
	fresh        int       // unclaimed events, as last counted
	freshCounted bool      // there were some, and since then no claim has found none
	unclaimable  bool      // the last claim found none: another transaction has locked them, or another process was faster
	emptySince   time.Time // when nothing was left that could be sent, as counted since; zero: something is. Delivered batches wait for their delete only
	reachableAt  time.Time // when the last Check of the sink that succeeded began
}

func (h *health) buffer(err error)       { h.set(&h.bufferErr, err) }
func (h *health) backpressure(err error) { h.set(&h.backpressureErr, err) }
func (h *health) claim(err error)        { h.set(&h.claimErr, err) }
func (h *health) takeOver(err error)     { h.set(&h.dueErr, err) }

// claimed notes whether a claim of fresh events found any.
func (h *health) claimed(some bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unclaimable = !some
	h.freshCounted = h.freshCounted && some
}

// accepted notes that the sink accepted a batch whose delivery is recorded, but whose events cannot be deleted yet.
func (h *health) accepted() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.undelivered = 0
	h.freshSince, h.dueSince = time.Time{}, time.Time{}
}

// reported takes the result of a write that is made also while nothing is delivered. Whether the database can be reached at all, others say.
func (h *health) reported(err error) {
	if err == nil || errors.Is(err, buffer.ErrNoWrites) {
		h.set(&h.writeErr, err)
	}
}

// sink takes the result of a Check of the sink, which began then.
func (h *health) sink(err error, began time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sinkErr = err; err == nil {
		h.reachableAt = began
	}
}

// begin notes that this process works on a batch, until end is called.
func (h *health) begin() (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inFlight++
	h.emptySince = time.Time{}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.inFlight--
	}
}

// outageOver reports whether the sink may be back although this process has sent nothing since: nothing is left that it could send, so another relay has
// delivered it, or a transaction has locked it, and a Check that began later found the sink.
func (h *health) outageOver() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.emptySince.IsZero() && h.reachableAt.After(h.emptySince)
}

// claimable reports whether events wait: they were counted, and since then no claim has found none.
func (h *health) claimable() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.freshCounted
}

// mayBeOver reports whether an outage is over if a Check finds the sink now; see outageOver.
func (h *health) mayBeOver() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.emptySince.IsZero() && !h.reachableAt.After(h.emptySince)
}

// sinkFailed reports whether the last Check of the sink failed.
func (h *health) sinkFailed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sinkErr != nil
}

// waits reports whether batches wait.
func (h *health) waits() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waiting
}

// countWaiting returns how many batches wait, as last counted.
func (h *health) countWaiting() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waitingBatches
}

// full reports whether so many batches wait that no more should be claimed for the sink, or any that no worker has leased yet. One that is due again is a
// retry: the probe of an address that is away, or a part of a batch that is searched. It takes its turn with fresh ones.
func (h *health) full(most int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waitingBatches >= most || h.queued > 0
}

// isQueued reports whether batches wait that no worker has leased yet.
func (h *health) isQueued() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.queued > 0
}

// queue notes that n batches more, or fewer, wait that no worker has leased yet.
func (h *health) queue(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queued = max(0, h.queued+n)
}

// routed notes that events were claimed and routed.
func (h *health) routed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.freshSince, h.dueSince = time.Time{}, time.Time{}
}

func (h *health) set(field *error, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*field = err
}

// counted takes a count of the backlog. Only one of fresh events shows whether there are any.
func (h *health) counted(backlog buffer.Backlog, fresh bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bufferErr = err
	if err != nil {
		return
	}
	now, due := time.Now(), backlog.Due+backlog.Suspects
	if due == 0 && backlog.Waiting == 0 {
		h.undelivered = 0 // nothing was put back, or another process has sent it
		h.dueErr = nil
	}
	if fresh {
		h.fresh, h.freshCounted = backlog.Unclaimed, backlog.Unclaimed > 0
		if h.fresh == 0 {
			h.claimErr = nil
		}
	}
	note(&h.emptySince, due+backlog.Waiting+h.inFlight == 0 && (h.fresh == 0 || h.unclaimable), now)
	if !h.emptySince.IsZero() && now.Sub(h.emptySince) > h.stalledAfter {
		h.stuck.forget() // no process has had a batch in flight for so long
	}
	h.waiting, h.waitingBatches, h.queued = backlog.Waiting > 0, backlog.Waiting+backlog.Delivered, backlog.Unsent
	note(&h.dueSince, due > 0, now)
	if fresh {
		note(&h.freshSince, backlog.Unclaimed > 0, now)
	}
}

// note keeps in since when something began that still is.
func note(since *time.Time, is bool, now time.Time) {
	switch {
	case !is:
		*since = time.Time{}
	case since.IsZero():
		*since = now
	}
}

// isOutage reports whether a send got nothing through because the sink, or the address it went to, was unavailable.
func isOutage(outcomes []buffer.Outcome) bool {
	return len(outcomes) > 0 && !slices.ContainsFunc(outcomes, func(o buffer.Outcome) bool { return o.Verdict != buffer.Retry || o.Outages == 0 })
}

// settled takes the outcomes of a batch. They are progress if something is delivered or buried, or the batch was
// split for its addresses or its size. A batch that is halved because it was refused is none.
func (h *health) settled(l *buffer.Lease, outcomes []buffer.Outcome, sent bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	progress, outage, refused := false, isOutage(outcomes), false
	for i := range outcomes {
		o := &outcomes[i]
		again := o.Verdict == buffer.Retry
		h.waiting = h.waiting || again
		progress = progress || !again || o.IDs != nil && o.Error == ""
		refused = refused || again && o.Outages == 0 && o.Error != ""
	}
	h.stuck.settled(l, outcomes, sent, progress, time.Now())
	h.emptySince = time.Time{}
	if !progress {
		switch {
		case sent && outage:
			h.undelivered++
			h.undeliveredErr = outcomes[0].Error
		case sent && refused: // by an answer to the events: the sink is available
			h.undelivered = 0
		}
		return
	}
	h.undelivered = 0
	h.freshSince, h.dueSince = time.Time{}, time.Time{}
}

// databaseReady returns why the database cannot be reached or used.
func (h *health) databaseReady() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := cmp.Or(h.bufferErr, h.writeErr); err != nil {
		return &NotReady{class: database, kind: databaseKind(err), err: err}
	}
	return nil
}

// startingKind is the kind of a reason that is only that the first check has not ended; otherwise "".
func startingKind(err error) string {
	if errors.Is(err, errStarting) {
		return buffer.KindStarting
	}
	return ""
}

// databaseKind is the kind of what a database does not do; "" if it does not work.
func databaseKind(err error) string {
	if _, locked := errors.AsType[*buffer.LockedError](err); locked {
		return buffer.KindLocked
	}
	return startingKind(err)
}

// resumed notes that a pause has ended: what waited during it is not stalled.
func (h *health) resumed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.freshSince, h.dueSince = time.Time{}, time.Time{}
}

// ready returns why no progress is made. outage is [delivery.Worker.LastOutage].
func (h *health) ready(now time.Time, outage error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case errors.Is(h.bufferErr, buffer.ErrProjection):
		return &NotReady{class: stalled, err: h.bufferErr}
	case h.bufferErr != nil:
		return &NotReady{class: database, kind: databaseKind(h.bufferErr), err: h.bufferErr}
	case h.writeErr != nil:
		return &NotReady{class: database, err: h.writeErr}
	case h.claimErr != nil:
		return &NotReady{class: database, kind: databaseKind(h.claimErr), err: h.claimErr}
	case h.dueErr != nil:
		return &NotReady{class: database, kind: databaseKind(h.dueErr), err: h.dueErr}
	case h.sinkErr != nil:
		return &NotReady{class: atSink, kind: cmp.Or(startingKind(h.sinkErr), sinkKind(h.sinkErr)), err: h.sinkErr}
	case h.undelivered >= 2:
		if outage == nil {
			outage = errors.New(h.undeliveredErr)
		}
		why := classifyOutage(outage)
		why.err = fmt.Errorf("%d sends in a row delivered nothing, the last: %w", h.undelivered, why.err)
		return why
	case h.backpressureErr != nil:
		return &NotReady{class: stalled, err: h.backpressureErr}
	}
	for _, since := range []time.Time{h.freshSince, h.dueSince} {
		if passed := now.Sub(since); !since.IsZero() && passed > h.stalledAfter {
			return &NotReady{class: stalled, err: fmt.Errorf("events wait, and none was delivered or buried for %v", passed.Round(time.Second))}
		}
	}
	if err := h.stuck.reason(now, h.stalledAfter); err != nil {
		return &NotReady{class: stalled, kind: buffer.KindStuck, err: err}
	}
	return nil
}
