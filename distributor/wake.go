package distributor

import "time"

// Bell tells of commits. Its methods never block.
//
// That no commit is missed is shared out so: what the bell does not hear is looked
// for, and when it hears again there is one look more. See heard.
type Bell interface {
	// Rings holds one when Heard has something new to say.
	Rings() <-chan struct{}
	// Heard returns how many commits rang since it was last called, and whether the
	// bell hears: every commit that a claim beginning now does not see will ring. When
	// it did not hear for a moment, it says so once before it says that it does again.
	Heard() (commits int, hears bool)
	// Mute asks that commits do not ring, or that they do again. It begins with a
	// bell that is not muted. From Mute(true) on the bell does not hear.
	Mute(on bool)
}

const (
	// pollFirst is how long after a claim that brought events the next poll is; each
	// that brings none doubles it, until pollMost, when the looks count instead.
	pollFirst = 5 * time.Millisecond
	pollMost  = time.Second
	// countDeaf is how often looks count where no commit rings, whatever the schedule
	// says; countAnyway, where they do, for what nobody thought of.
	countDeaf   = dueEvery
	countAnyway = time.Minute
	// weighEvery is how often ringing is weighed against polling.
	weighEvery = 100 * time.Millisecond
)

// waking is what a distributor knows of commits between two distributions. Owned by
// Run.
type waking struct {
	bell Bell // nil: there is none
	on   bool // fresh events are claimed between distributions

	asked    bool          // a claim of fresh events is asked for, by a ring or a poll
	hears    bool          // the bell does, as last heard
	muted    bool          // and was asked to be
	poll     time.Time     // the next; zero: none is planned
	pause    time.Duration // before it
	answered time.Time     // when what was asked for last was handed out
	count    time.Time     // the next look counts, if it is not before this
	weighed  time.Time     // when ringing and polling were last weighed
	commits  int           // that rang since
	claims   int           // of fresh events, since
	events   int           // they brought
	claiming time.Duration // what a claim takes, on average
}

// start asks for a claim: nobody knows what was committed before.
func (w *waking) start(now time.Time) {
	w.asked, w.claiming, w.weighed = w.on, time.Millisecond, now
	w.deaf(now)
}

// rings is where the bell is heard; nil, where nothing ever is, when there is none.
func (w *waking) rings() <-chan struct{} {
	if w.bell == nil {
		return nil
	}
	return w.bell.Rings()
}

// heard takes what the bell says. What was committed while it did not hear is asked
// for as soon as it does, and what is committed from now on rings.
func (w *waking) heard(now time.Time) {
	commits, hears := w.bell.Heard()
	if commits > 0 || hears && !w.hears {
		w.asked = true
	}
	if !hears && w.hears {
		w.deaf(now)
	}
	w.hears = hears
	w.commits += commits
	w.weigh(now)
}

// deaf goes on by polling.
func (w *waking) deaf(now time.Time) {
	w.hears, w.count = false, now
	w.polls(now)
}

// polls plans one soon after then. However many workers report, they agree on one.
func (w *waking) polls(then time.Time) {
	if w.on {
		w.pause = pollFirst
		w.poll = then.Add(pollFirst)
	}
}

// answer takes note that a claim begins, and returns whether it was asked for.
func (w *waking) answer(now time.Time) (asked bool) {
	if asked = w.asked; asked {
		w.asked, w.answered = false, now
	}
	return asked
}

// tick asks for a claim when it is time for a poll.
func (w *waking) tick(now time.Time) {
	if !w.poll.IsZero() && !now.Before(w.poll) {
		w.asked, w.poll = true, time.Time{}
	}
}

// countsAt tells whether a look at this time counts fresh events, whatever the
// schedule says.
func (w *waking) countsAt(now time.Time) bool { return w.on && !now.Before(w.count) }

// looked takes note that a look counted.
func (w *waking) looked(now time.Time) {
	every := countDeaf
	if w.hears {
		every = countAnyway
	}
	w.count = now.Add(every)
}

// claimed takes a report on a ticket for fresh events. After one that brought some
// there is a poll also where commits ring: for one that committed late, behind those
// that were claimed, and for one whose key was in this batch.
func (w *waking) claimed(r Report, now time.Time) {
	if !w.on {
		return
	}
	if r.Err != nil {
		w.asked = w.asked || r.Ticket.asked // it was not used
		return
	}
	w.claims++
	w.events += r.Events
	if r.Took > 0 {
		w.claiming += (r.Took - w.claiming) / 8
	}
	switch {
	case r.Events > 0 && r.Ticket.asked:
		w.polls(w.answered) // the time it took counts
	case r.Events > 0:
		w.polls(now)
	case r.Ticket.asked && w.hears:
		w.poll = time.Time{}
	case r.Ticket.asked:
		w.pause *= 2
		w.poll = w.answered.Add(w.pause)
		if w.pause >= pollMost {
			w.poll = time.Time{}
		}
	}
	w.weigh(now)
}

// weigh decides whether commits ring. Those that do stand in line: each holds a lock
// of the whole database while it waits for the disk, which takes about as long as a
// claim does. When a claim for each would take all the time, the application is held
// up, and the relay, which is busy anyway, polls. When half the time would do for the
// events that come, it has itself be rung again; without a claim nobody knows whether
// any come.
func (w *waking) weigh(now time.Time) {
	passed := now.Sub(w.weighed)
	if w.bell == nil || passed < weighEvery {
		return
	}
	switch {
	case !w.muted && time.Duration(w.commits)*w.claiming > passed:
		w.muted = true
		w.bell.Mute(true)
		w.deaf(now)
	case w.muted && w.claims > 0 && time.Duration(w.events)*w.claiming < passed/2:
		w.muted = false
		w.bell.Mute(false)
	}
	w.weighed, w.commits, w.claims, w.events = now, 0, 0, 0
}
