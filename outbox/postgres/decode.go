package postgres

import (
	"cmp"
	"slices"

	"github.com/outboxrelay/relay/outbox"
)

// decoder turns rows (id, topic, key, payload, headers, created_at) into events.
// The bytes of many rows share one block of memory, so that a batch costs a
// handful of allocations and not thousands. They are copied out of pgx's read buffer,
// once, because pgx reads the next rows into it.
type decoder struct {
	payloadOID uint32
	pipeline   string // of dead letters
	limit      int    // of events; 0: not known
	used       int    // bytes, in all blocks
	free       []byte
	events     []outbox.Event
	keys       []string
	lastTopic  string
}

const (
	oidJSONB = 3802
	oidJSON  = 114
	oidBytea = 17

	// Most claims of a relay that keeps up bring an event or two, so the first room
	// is small, and the next is about what the rest of a full batch takes.
	firstBlock  = 4 << 10
	mostBlock   = 1 << 20
	firstEvents = 64
)

// reserve says that there may be n events.
func (d *decoder) reserve(n int) { d.limit = n }

// room makes room for another event.
func (d *decoder) room() {
	n := len(d.events)
	if n < cap(d.events) {
		return
	}
	most := d.limit
	if n >= most {
		most = max(firstEvents, 2*n)
	}
	grown := make([]outbox.Event, n, min(most, max(firstEvents, 16*n)))
	copy(grown, d.events)
	d.events = grown
}

// block is how large the next block is: for the rest of a full batch by what events
// took so far, but not many times that.
func (d *decoder) block(least int) int {
	size := max(firstBlock, 8*d.used)
	if n := len(d.events); n > 0 && d.limit > n {
		size = min(size, d.used/n*(d.limit-n)*17/16)
	}
	return max(least, min(max(firstBlock, size), mostBlock))
}

// forget is the row function of a first step: what came before is run again.
func (d *decoder) forget([][]byte) error {
	d.events, d.used = d.events[:0], 0
	return nil
}

// add is a step's row function.
func (d *decoder) add(v [][]byte) error {
	e := outbox.Event{ID: int8Of(v[0]), Topic: d.topic(v[1]), CreatedAt: timeOf(v[5])}
	if v[2] != nil {
		if len(d.keys) == cap(d.keys) { // pointers into the old block stay good
			d.keys = make([]string, 0, max(8, min(len(d.events), 256)))
		}
		d.keys = append(d.keys, string(v[2]))
		e.Key = &d.keys[len(d.keys)-1]
	}
	payload := v[3]
	if d.payloadOID == oidJSONB && len(payload) > 0 {
		payload = payload[1:] // jsonb's version byte
	}
	e.Payload = d.bytes(payload)
	if len(v[4]) > 0 { // jsonb is never empty, so this is not NULL
		e.Headers = d.bytes(v[4][1:])
	}
	d.room()
	d.events = append(d.events, e)
	return nil
}

func (d *decoder) bytes(v []byte) []byte {
	if len(v) == 0 { // empty, which is not NULL
		return []byte{}
	}
	if len(v) > len(d.free) {
		d.free = make([]byte, d.block(len(v)))
	}
	d.used += len(v)
	copied := d.free[:len(v):len(v)]
	copy(copied, v)
	d.free = d.free[len(v):]
	return copied
}

// topic hands out one string for a run of equal topics.
func (d *decoder) topic(v []byte) string {
	if string(v) != d.lastTopic {
		d.lastTopic = string(v)
	}
	return d.lastTopic
}

// sorted returns the events in id order: RETURNING promises none, although the
// plan gives it.
func (d *decoder) sorted() []outbox.Event {
	byID := func(a, b outbox.Event) int { return cmp.Compare(a.ID, b.ID) }
	if !slices.IsSortedFunc(d.events, byID) {
		slices.SortFunc(d.events, byID)
	}
	return d.events
}
