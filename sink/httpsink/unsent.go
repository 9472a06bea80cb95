package httpsink

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// A request program can leave out events that count as delivered all the same, and its text does not always show it: INDEX(.key) keeps one event a key. So the
// program runs once more with one event removed. If the request is the same, that event is not in it.
const (
	probedBatches  = 10 // the first ones that are delivered after the start
	probedEvents   = 4  // of such a batch
	shownEvents    = 20 // of a batch that is only shown
	maxProbedBytes = 1 << 20
	probeTime      = 5 * time.Second // for all runs of a batch
)

// probes are the runs that look for events which the program leaves out. They are beside the deliveries, those of one batch at a time.
type probes struct {
	mu      sync.Mutex
	batches int
	closed  bool
	end     context.CancelFunc // of what runs; nil if nothing does
	runs    sync.WaitGroup
}

// mayProbe reports whether there is something to find out about a request.
func (s *Sink) mayProbe(r *request) bool {
	return s.request != nil && !s.cfg.LeavesOut && len(r.indexes) > 1 && len(r.body) <= maxProbedBytes
}

// probe looks for events that a request which was accepted does not have, without delaying anything. A notice names them.
func (s *Sink) probe(b *buffer.Batch, r *request) {
	p := &s.probes
	if !s.mayProbe(r) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.end != nil || p.batches == probedBatches {
		return
	}
	p.batches++
	without := s.inputsWithout(b, r.indexes, suspects(b, distinct(b, r.indexes)))
	if len(without) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	p.end = cancel
	p.runs.Go(func() {
		defer func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			cancel()
			p.end = nil
		}()
		if unsent := s.unchanged(ctx, r.body, without); len(unsent) > 0 {
			s.odd.addUnsent(len(r.indexes), identities(unsent))
		}
	})
}

// close ends what runs, and lets nothing begin.
func (p *probes) close() {
	p.mu.Lock()
	p.closed = true
	if p.end != nil {
		p.end()
	}
	p.mu.Unlock()
	p.runs.Wait()
}

// unsentOf returns the indexes of the events that a request which is only shown does not have.
func (s *Sink) unsentOf(ctx context.Context, b *buffer.Batch, r *request) (unsent []int) {
	if !s.mayProbe(r) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	some := distinct(b, r.indexes)
	for _, one := range s.unchanged(ctx, r.body, s.inputsWithout(b, r.indexes, some[:min(len(some), shownEvents)])) {
		unsent = append(unsent, one.index)
	}
	return unsent
}

// inputWithout is the program's input without one event.
type inputWithout struct {
	index int
	id    string
	text  []byte
}

func identities(all []inputWithout) (ids []string) {
	for _, one := range all {
		ids = append(ids, one.id)
	}
	return ids
}

// inputsWithout makes the inputs: the batch is not the sink's once it is settled.
func (s *Sink) inputsWithout(b *buffer.Batch, indexes, removed []int) (all []inputWithout) {
	for _, i := range removed {
		others := slices.DeleteFunc(slices.Clone(indexes), func(other int) bool { return other == i })
		all = append(all, inputWithout{i, b.Events[i].Identity(), defaultFormat(b).makeBody(b, others)})
	}
	return all
}

// unchanged returns those of the inputs that make the same body. A run that fails says nothing.
func (s *Sink) unchanged(ctx context.Context, body []byte, without []inputWithout) (same []inputWithout) {
	for _, one := range without {
		got, err := s.request.Request(ctx, one.text, s.shape())
		switch {
		case ctx.Err() != nil:
			return same
		case err == nil && bytes.Equal(got, body):
			same = append(same, one)
		}
	}
	return same
}

// distinct returns the events whose absence a request shows if it has them: not those that another one equals, which may be sent once, and not those
// that say nothing.
func distinct(b *buffer.Batch, indexes []int) (some []int) {
	count := map[string]int{}
	for _, i := range indexes {
		count[contentOf(&b.Events[i])]++
	}
	for _, i := range indexes {
		e := &b.Events[i]
		switch strings.Join(strings.Fields(string(e.Payload)), "") {
		case "", "null", "{}", "[]", `""`:
		default:
			if count[contentOf(e)] == 1 {
				some = append(some, i)
			}
		}
	}
	return some
}

// contentOf is what applications wrote: two events may have the same.
func contentOf(e *outbox.Event) string {
	return strconv.Quote(e.Topic) + strconv.Quote(keyOf(e)) + strconv.Quote(string(e.Headers)) + string(e.Payload)
}

func keyOf(e *outbox.Event) string {
	if e.Key == nil {
		return ""
	}
	return *e.Key
}

// suspects returns the events that a program leaves out most often: the first and the last one of a key, and of the batch.
func suspects(b *buffer.Batch, indexes []int) (some []int) {
	if len(indexes) == 0 {
		return nil
	}
	first := map[string]int{}
	for _, i := range indexes {
		key := keyOf(&b.Events[i])
		before, again := first[key]
		switch {
		case !again:
			first[key] = i
		case key != "" && len(some) == 0:
			some = append(some, before, i)
		}
	}
	some = append(some, indexes[0], indexes[len(indexes)-1])
	slices.Sort(some)
	some = slices.Compact(some)
	return some[:min(len(some), probedEvents)]
}
