package distributor

import "time"

// Listener notifies of commits. Its methods never block. No commit is missed: while it does not
// listen, the distributor polls, and when it listens again there is one more claim.
type Listener interface {
	// Notifications holds a value when Drain has something new to return.
	Notifications() <-chan struct{}
	// Drain returns how many commits notified since it was last called, and whether
	// the listener listens: every commit that a claim beginning now does not see will notify.
	// If it did not listen for a moment, it says so once before it says that it does again.
	Drain() (commits int, listening bool)
	// Pause asks that commits do not notify, or that they do again. A listener begins
	// unpaused. From Pause(true) on it does not listen.
	Pause(on bool)
}

const (
	// firstPoll is how long after a claim that returned events the next poll is; each poll
	// that returns none makes it longer by half, until Config.IdlePoll; from maxPoll on the counts find events instead.
	firstPoll = 5 * time.Millisecond
	maxPoll   = time.Second
	// followUp is how long after a claim that returned events one more poll is while commits notify. A late commit
	// notifies too, and claims of few events look for it, so that this is for those that a large claim passed over.
	followUp = 250 * time.Millisecond
	// pollInterval is how often counts include fresh events, besides the schedule, while no
	// commit notifies; safetyInterval while commits do, in case a notification was lost.
	pollInterval   = dueInterval
	safetyInterval = time.Minute
	// balanceInterval is how often notifications are compared with polling.
	balanceInterval = 100 * time.Millisecond
)

// wakeState is what a distributor knows of commits between two distributions. Owned by Run.
type wakeState struct {
	listener Listener // nil: there is none
	polls    bool     // fresh events are claimed between distributions
	ordered  bool     // an event may wait for the batch that holds its key
	idlePoll time.Duration

	requested   bool          // a notification or a poll asks for a claim of fresh events
	notified    bool          // and it is a notification of a commit
	listening   bool          // the listener does, as it last said
	paused      bool          // and was asked to be
	pollAt      time.Time     // the next poll; zero: none is planned
	pollWait    time.Duration // before it
	requestedAt time.Time     // when the last request became a ticket
	freshAt     time.Time     // the next count includes fresh events from then on
	balancedAt  time.Time     // when notifications and polling were last compared
	commits     int           // that notified since
	claims      int           // of fresh events, since
	events      int           // that they returned
	claimTime   time.Duration // of one claim that does not wait for a processor
}

// start requests a claim, for what was committed before.
func (w *wakeState) start(now time.Time) {
	w.requested, w.claimTime, w.balancedAt = w.polls, time.Millisecond, now
	w.notListening(now)
}

// notifications is the listener's channel; nil, which never delivers, if there is none.
func (w *wakeState) notifications() <-chan struct{} {
	if w.listener == nil {
		return nil
	}
	return w.listener.Notifications()
}

// onNotification takes what the listener says. What was committed while it did not listen
// is claimed as soon as it does, and what is committed from now on notifies.
func (w *wakeState) onNotification(now time.Time) {
	commits, listening := w.listener.Drain()
	if commits > 0 || listening && !w.listening {
		w.requested = true
	}
	if !listening && w.listening {
		w.notListening(now)
	}
	w.notified = w.notified || commits > 0
	w.listening = listening
	w.commits += commits
	w.balance(now)
}

// notListening falls back to polling.
func (w *wakeState) notListening(now time.Time) {
	w.listening, w.freshAt = false, now
	w.planPoll(now)
}

// planPoll plans one poll soon after then.
func (w *wakeState) planPoll(then time.Time) {
	if w.polls {
		w.pollWait = firstPoll
		w.pollAt = then.Add(firstPoll)
	}
}

// takeRequest notes that a claim begins, and reports whether it was requested, and by a commit.
func (w *wakeState) takeRequest(now time.Time) (requested, notified bool) {
	if requested = w.requested; requested {
		notified = w.notified
		w.requested, w.notified, w.requestedAt = false, false, now
	}
	return requested, notified
}

// tick requests a claim when a poll is due.
func (w *wakeState) tick(now time.Time) {
	if !w.pollAt.IsZero() && !now.Before(w.pollAt) {
		w.requested, w.pollAt = true, time.Time{}
	}
}

// countsFresh reports whether a count now includes fresh events, besides the schedule.
func (w *wakeState) countsFresh(now time.Time) bool { return w.polls && !now.Before(w.freshAt) }

// countedFresh notes that a count included fresh events.
func (w *wakeState) countedFresh(now time.Time) {
	interval := pollInterval
	if w.listening {
		interval = safetyInterval
	}
	w.freshAt = now.Add(interval)
}

// onClaim takes a report on a ticket for fresh events. After a claim that returned some
// there is a poll even while commits notify: for an event that committed late, behind those
// that were claimed, and with order by key soon, for one whose key was in this batch.
func (w *wakeState) onClaim(r Report, now time.Time) {
	if !w.polls {
		return
	}
	if r.Err != nil {
		w.requested = w.requested || r.Ticket.requested // the ticket was not used
		return
	}
	w.claims++
	w.events += r.Events
	if r.Events > 0 { // an empty claim does not wait for the disk
		w.took(r.Took)
	}
	switch {
	case r.Events > 0 && w.listening && !w.ordered:
		w.pollWait, w.pollAt = firstPoll, now.Add(followUp)
	case r.Events > 0 && r.Ticket.requested:
		w.planPoll(w.requestedAt) // the time it took counts
	case r.Events > 0:
		w.planPoll(now)
	case r.Ticket.requested && w.listening:
		w.pollAt = time.Time{}
	case r.Ticket.requested:
		w.pollWait = min(w.pollWait+w.pollWait/2, w.idlePoll)
		w.pollAt = w.requestedAt.Add(w.pollWait)
		if w.pollWait >= maxPoll {
			w.pollAt = time.Time{}
		}
	}
	w.balance(now)
}

// took takes the time of a claim. A claim that waits for a processor takes longer, and says nothing of the disk, so
// that claimTime follows shorter ones at once and longer ones slowly.
func (w *wakeState) took(claim time.Duration) {
	switch {
	case claim <= 0:
	case claim < w.claimTime:
		w.claimTime += (claim - w.claimTime) / 2
	default:
		w.claimTime += (claim - w.claimTime) / 64
	}
}

// balance decides whether commits notify. Commits that notify queue up: each holds a lock of the
// whole database while it waits for the disk, about as long as a claim takes. If a claim for each
// would take all the time, the listener is paused and the distributor polls. If half the time is
// enough for the events that claims return, the listener is resumed.
func (w *wakeState) balance(now time.Time) {
	passed := now.Sub(w.balancedAt)
	if w.listener == nil || passed < balanceInterval {
		return
	}
	switch {
	case !w.paused && time.Duration(w.commits)*w.claimTime > passed:
		w.paused = true
		w.listener.Pause(true)
		w.notListening(now)
	case w.paused && w.claims > 0 && time.Duration(w.events)*w.claimTime < passed/2:
		w.paused = false
		w.listener.Pause(false)
	}
	w.balancedAt, w.commits, w.claims, w.events = now, 0, 0, 0
}
