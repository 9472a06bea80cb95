package natssink

import (
	"context"
	"errors"
	"strconv"
)

// inflight is the events of one Send that wait for answers. All but no, replyTo and subjects is guarded by
// the connection's mutex.
type inflight struct {
	no uint64
	// replyTo is the prefix of the events' reply subjects.
	replyTo string
	// subjects by index; "" for an event that has none.
	subjects []string
	// results by index: errPending, nil (accepted) or why not.
	results []error
	pending int
	// queues keep order by key; nil: order does not matter.
	queues *keyQueues
	// finish is called when no event is pending.
	finish context.CancelFunc
}

// errPending is the result of an event that has no answer yet.
var errPending = errors.New("no answer yet")

// register registers the events of a Send; complete ends that. An event without a subject comes with its
// result.
func (c *connection) register(subjects []string, results []error, finish context.CancelFunc) *inflight {
	f := &inflight{subjects: subjects, results: results, finish: finish}
	for i := range results {
		if results[i] == nil {
			results[i] = errPending
			f.pending++
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	f.no = c.last
	f.replyTo = c.inbox + strconv.FormatUint(f.no, 36) + "."
	c.inflight[f.no] = f
	if f.pending == 0 {
		finish()
	}
	return f
}

// complete returns the results. Events that are still pending get unanswered, and answers that come later are
// ignored.
func (c *connection) complete(f *inflight, unanswered error) (results []error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.resolveAll(unanswered)
	delete(c.inflight, f.no)
	return f.results
}

// resolve gives a pending event its result, and reports whether it was pending.
func (f *inflight) resolve(i int, result error) bool {
	if !errors.Is(f.results[i], errPending) {
		return false
	}
	f.results[i] = result
	f.pending--
	if f.queues != nil {
		f.queues.resolved(f, i, result)
	}
	if f.pending == 0 {
		f.finish()
	}
	return true
}

func (f *inflight) resolveAll(result error) {
	for i := range f.results {
		f.resolve(i, result)
	}
}

func (f *inflight) resolveSubject(subject string, result error) {
	for i := range f.subjects {
		if f.subjects[i] == subject {
			f.resolve(i, result)
		}
	}
}

// pendingOf returns the indexes of the pending events that are in the groups, or of those that are not.
func (c *connection) pendingOf(f *inflight, groups map[*stream][]int, inGroups bool) []int {
	in := make([]bool, len(f.results))
	for _, events := range groups {
		for _, i := range events {
			in[i] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]int, 0, f.pending)
	for i, result := range f.results {
		if in[i] == inGroups && errors.Is(result, errPending) {
			all = append(all, i)
		}
	}
	return all
}
