package pipeline_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// leaseHolder has taken a batch, whether it still owns the lease or not.
type leaseHolder struct {
	buf     buffer.Queue
	batch   *buffer.Lease
	process int
	suspect bool
	sent    bool // the sink said that it has them
}

// processes are those of a model, one at each buffer, and what they have taken. As in a pipeline a process that has taken
// a suspect has taken nothing else. A process that dies or is stopped has a successor.
type processes struct {
	buffers []buffer.Queue
	running [2]int // the process at each buffer, by number
	started int
	holders []*leaseHolder
	// alone counts the leases of a suspect that follow each other.
	alone map[uuid.UUID]int
}

// takeOver draws a process and what it takes over. b is nil if there is nothing of this kind.
func (p *processes) takeOver(t *rapid.T) (h *leaseHolder) {
	at := rapid.IntRange(0, 1).Draw(t, "process")
	kind := rapid.SampledFrom([]buffer.Due{buffer.DueRetry, buffer.DueSuspect}).Draw(t, "kind")
	if p.holdsSuspect(at) || kind == buffer.DueSuspect && p.holds(at, func(*leaseHolder) bool { return true }) {
		p.endProcess(t, at)
	}
	b, err := p.buffers[at].TakeOver(t.Context(), time.Hour, kind)
	return p.took(t, at, kind == buffer.DueSuspect, b, err)
}

func (p *processes) claim(t *rapid.T, least, most int) *leaseHolder {
	at := rapid.IntRange(0, 1).Draw(t, "process")
	if p.holdsSuspect(at) {
		p.endProcess(t, at)
	}
	b, err := p.buffers[at].Claim(t.Context(), rapid.IntRange(least, most).Draw(t, "limit"), time.Hour)
	return p.took(t, at, false, b, err)
}

// next is what a single process takes when it has nothing: what is due, then fresh events.
func (p *processes) next(t *rapid.T) *leaseHolder {
	for _, kind := range []buffer.Due{buffer.DueRetry, buffer.DueSuspect} {
		b, err := p.buffers[0].TakeOver(t.Context(), time.Hour, kind)
		if h := p.took(t, 0, kind == buffer.DueSuspect, b, err); h != nil {
			return h
		}
	}
	b, err := p.buffers[0].Claim(t.Context(), 1000, time.Hour)
	return p.took(t, 0, false, b, err)
}

// took checks what the ledger knows of deaths: a batch is blamed for the leases that it had alone.
func (p *processes) took(t *rapid.T, at int, suspect bool, b *buffer.Lease, err error) *leaseHolder {
	if err != nil {
		t.Fatal(err)
	}
	if b == nil {
		return nil
	}
	if p.alone == nil {
		p.alone = map[uuid.UUID]int{}
	}
	if suspect {
		p.alone[b.GroupID]++
	} else {
		delete(p.alone, b.GroupID)
	}
	switch n := b.UnfinishedLeases; {
	case b.DeliveryRecorded():
	case suspect && n != buffer.SuspectAfter+p.alone[b.GroupID]:
		t.Fatalf("batch %s has %d unfinished leases, want %d in company and %d alone", b.GroupID, n, buffer.SuspectAfter, p.alone[b.GroupID])
	case !suspect && n > buffer.SuspectAfter:
		t.Fatalf("batch %s has %d unfinished leases and is no suspect", b.GroupID, n)
	}
	return &leaseHolder{buf: p.buffers[at], batch: b, process: p.running[at], suspect: suspect}
}

// blamed reports whether the batch died alone so often that it is not sent any more.
func (p *processes) blamed(b *buffer.Lease) bool {
	died := p.alone[b.GroupID] - 1 // less the present lease
	return died >= 5 || died >= 2 && len(b.Events) > 1
}

// endProcess kills the process, or stops it for longer than its leases: then it may go on later.
func (p *processes) endProcess(t *rapid.T, at int) {
	if rapid.Bool().Draw(t, "killed") {
		p.holders = slices.DeleteFunc(p.holders, func(h *leaseHolder) bool { return h.process == p.running[at] })
	}
	p.started++
	p.running[at] = 2 + p.started
}

func (p *processes) die(t *rapid.T) { p.endProcess(t, rapid.IntRange(0, 1).Draw(t, "process")) }

func (p *processes) holdsSuspect(at int) bool {
	return p.holds(at, func(h *leaseHolder) bool { return h.suspect })
}

func (p *processes) holds(at int, which func(*leaseHolder) bool) bool {
	return slices.ContainsFunc(p.holders, func(h *leaseHolder) bool { return h.process == p.running[at] && which(h) })
}

// holder draws one that has taken a batch of a kind; nil: there is none.
func (p *processes) holder(t *rapid.T, is func(*leaseHolder) bool) *leaseHolder {
	return drawn(t, p.holders, is)
}

// drawn draws one of a kind. If there is none, it returns nil and draws nothing: a step that is skipped after it drew something ends most plays, because
// rapid allows two of them for each step that is done.
func drawn[H any](t *rapid.T, of []*H, is func(*H) bool) *H {
	var able []*H
	for _, h := range of {
		if is(h) {
			able = append(able, h)
		}
	}
	if len(able) == 0 {
		return nil
	}
	return rapid.SampledFrom(able).Draw(t, "holder")
}

// steps count how often each action of a model was done, in all plays.
type steps map[string]int

// counted are the actions of a play.
func (s steps) counted(actions map[string]func(*rapid.T)) map[string]func(*rapid.T) {
	all := map[string]func(*rapid.T){}
	for name, do := range actions {
		s[name] += 0
		all[name] = func(t *rapid.T) {
			do(t) // does not return if it skips
			s[name]++
		}
	}
	return all
}

// expectAll expects that no action was skipped each time.
func (s steps) expectAll(t *testing.T) {
	t.Helper()
	for name, times := range s {
		if times == 0 {
			t.Errorf("%q was never done", name)
		}
	}
}

func anyHolder(*leaseHolder) bool { return true }

func wasSent(h *leaseHolder) bool { return h.sent }

func (p *processes) drop(h *leaseHolder) {
	p.holders = slices.DeleteFunc(p.holders, func(other *leaseHolder) bool { return other == h })
}
