package natssink

import (
	"context"
	"errors"
	"strconv"
)

// flight is the events of one Send on their way. All but subjects, replyTo and no
// is guarded by the connection's mutex.
type flight struct {
	no uint64
	// replyTo is the prefix of the events' reply subjects.
	replyTo string
	// subjects by index; "" for an event that has none.
	subjects []string
	// verdicts by index: errWaiting, nil (accepted) or why not.
	verdicts []error
	waiting  int
	// queues keep order; nil: nobody does.
	queues *queues
	// duplicates counts the accepted events that the stream knew already, but for
	// those in sent.
	duplicates int
	// sent are the events that this Send may have had stored before.
	sent map[int]bool
	// finish is called when no event waits any more.
	finish context.CancelFunc
}

// errWaiting is the verdict on an event nobody has answered for yet.
var errWaiting = errors.New("no answer yet")

// launch registers a flight; land it in the end. Events without a subject come
// with their verdict.
func (c *connection) launch(subjects []string, verdicts []error, finish context.CancelFunc) *flight {
	f := &flight{subjects: subjects, verdicts: verdicts, finish: finish}
	for i := range verdicts {
		if verdicts[i] == nil {
			verdicts[i] = errWaiting
			f.waiting++
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	f.no = c.last
	f.replyTo = c.inbox + strconv.FormatUint(f.no, 36) + "."
	c.flights[f.no] = f
	if f.waiting == 0 {
		finish()
	}
	return f
}

// land ends the flight: answers that come later are ignored. left is the verdict
// on events that still wait.
func (c *connection) land(f *flight, left error) (verdicts []error, duplicates int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.settleAll(left)
	delete(c.flights, f.no)
	return f.verdicts, f.duplicates
}

// settle is the first verdict on an event; later ones do not count.
func (f *flight) settle(i int, verdict error) bool {
	if !errors.Is(f.verdicts[i], errWaiting) {
		return false
	}
	f.verdicts[i] = verdict
	f.waiting--
	if f.queues != nil {
		f.queues.settled(f, i, verdict)
	}
	if f.waiting == 0 {
		f.finish()
	}
	return true
}

// known notes that the event may be stored though it has no verdict yet.
func (f *flight) known(i int) {
	if !errors.Is(f.verdicts[i], errWaiting) {
		return
	}
	if f.sent == nil {
		f.sent = map[int]bool{}
	}
	f.sent[i] = true
}

// waiting are the indexes of the events that have no verdict, of those in the groups
// or of the others.
func (c *connection) waiting(f *flight, groups []group, grouped bool) []int {
	in := make([]bool, len(f.verdicts))
	for _, g := range groups {
		for _, i := range g.events {
			in[i] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]int, 0, f.waiting)
	for i, verdict := range f.verdicts {
		if in[i] == grouped && errors.Is(verdict, errWaiting) {
			all = append(all, i)
		}
	}
	return all
}

func (f *flight) settleAll(verdict error) {
	for i := range f.verdicts {
		f.settle(i, verdict)
	}
}

func (f *flight) settleSubject(subject string, verdict error) {
	for i := range f.subjects {
		if f.subjects[i] == subject {
			f.settle(i, verdict)
		}
	}
}
