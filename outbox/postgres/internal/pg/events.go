package pg

import (
	"cmp"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// EventDecoder turns rows (id, topic, key, payload, headers, created_at and, where it is read, available_at) into events.
// The bytes of many rows share one block of memory, so that a batch costs a handful of
// allocations and not thousands. They are copied out of pgx's read buffer, once, because
// pgx reads the next rows into it.
type EventDecoder struct {
	// PayloadOID is the type of the payload column. See Columns.
	PayloadOID uint32
	// Events are those that were decoded.
	Events []outbox.Event

	delays    bool // column 6 is available_at
	limit     int  // of events; 0: not known
	size      int  // what counts against buffer.MaxBytes
	fitted    int  // events that were counted
	used      int  // bytes, in all blocks
	free      []byte
	keys      []string
	lastTopic string
}

// Most claims of a relay that keeps up return an event or two, so the first allocation is
// small, and the next is about what the rest of a full batch takes.
const (
	firstBlock  = 4 << 10
	maxBlock    = 1 << 20
	firstEvents = 64
)

// Reserve announces that there may be n events.
func (d *EventDecoder) Reserve(n int) { d.limit = n }

// Grow makes room for one more event.
func (d *EventDecoder) Grow() {
	n := len(d.Events)
	if n < cap(d.Events) {
		return
	}
	most := d.limit
	if n >= most {
		most = max(firstEvents, 2*n)
	}
	grown := make([]outbox.Event, n, min(most, max(firstEvents, 16*n)))
	copy(grown, d.Events)
	d.Events = grown
}

// blockSize is the size of the next block: for the rest of a full batch by what events took
// so far, but not many times that.
func (d *EventDecoder) blockSize(least int) int {
	size := max(firstBlock, 8*d.used)
	if n := len(d.Events); n > 0 && d.limit > n {
		size = min(size, d.used/n*(d.limit-n)*17/16)
	}
	return max(least, min(max(firstBlock, size), maxBlock))
}

// Reset is the Row function of a first step: the transaction runs, perhaps again.
func (d *EventDecoder) Reset([][]byte) error {
	d.Events, d.used, d.size, d.fitted = d.Events[:0], 0, 0, 0
	return nil
}

// Fit counts n bytes of the next event. The error is buffer.ErrTooLarge if the batch would be too large with
// them; a single event never is.
func (d *EventDecoder) Fit(n int) error {
	if d.size += n; d.size > buffer.MaxBytes && d.fitted > 0 {
		return buffer.ErrTooLarge
	}
	d.fitted++
	return nil
}

// Weigh counts more bytes of an event that fitted.
func (d *EventDecoder) Weigh(n int) { d.size += n }

// Fitted returns how many events were read.
func (d *EventDecoder) Fitted() int { return d.fitted }

// Columns is the Columns function of a step with Append: the type of the payload column may have changed since the table was read, and
// only rows of the buffer have an available_at.
func (d *EventDecoder) Columns(columns []pgconn.FieldDescription) {
	if len(columns) > 3 {
		d.PayloadOID = columns[3].DataTypeOID
	}
	d.delays = len(columns) > 6 && columns[6].Name == "available_at"
}

// Append is the Row function that decodes a row.
func (d *EventDecoder) Append(v [][]byte) error {
	if err := d.Fit(len(v[1]) + len(v[2]) + len(v[3]) + len(v[4])); err != nil {
		return err
	}
	return d.AppendListed(v)
}

// AppendListed is Append for a row of a list by ids, which is not bounded.
func (d *EventDecoder) AppendListed(v [][]byte) error {
	e := outbox.Event{ID: ReadInt8(v[0]), Topic: d.Topic(v[1]), CreatedAt: ReadTime(v[5])}
	if d.delays && v[6] != nil {
		e.AvailableAt = ReadTime(v[6])
	}
	if v[2] != nil {
		if len(d.keys) == cap(d.keys) { // pointers into the old block stay good
			d.keys = make([]string, 0, max(8, min(len(d.Events), 256)))
		}
		d.keys = append(d.keys, string(v[2]))
		e.Key = &d.keys[len(d.keys)-1]
	}
	payload := v[3]
	if IsJSON(d.PayloadOID) { // of either type: the column's may change meanwhile
		payload = ReadJSON(payload)
	}
	e.Payload = d.Copy(payload)
	if len(v[4]) > 0 { // JSON is never empty, so this is not NULL
		e.Headers = d.Copy(ReadJSON(v[4]))
	}
	d.Grow()
	d.Events = append(d.Events, e)
	return nil
}

// Copy copies bytes out of pgx's read buffer.
func (d *EventDecoder) Copy(v []byte) []byte {
	if len(v) == 0 { // empty, which is not NULL
		return []byte{}
	}
	if len(v) > len(d.free) {
		d.free = make([]byte, d.blockSize(len(v)))
	}
	d.used += len(v)
	copied := d.free[:len(v):len(v)]
	copy(copied, v)
	d.free = d.free[len(v):]
	return copied
}

// Topic returns one string for a run of equal topics.
func (d *EventDecoder) Topic(v []byte) string {
	if string(v) != d.lastTopic {
		d.lastTopic = string(v)
	}
	return d.lastTopic
}

// Sorted returns the events in id order: RETURNING promises none, although the plan
// produces it.
func (d *EventDecoder) Sorted() []outbox.Event {
	byID := func(a, b outbox.Event) int { return cmp.Compare(a.ID, b.ID) }
	if !slices.IsSortedFunc(d.Events, byID) {
		slices.SortFunc(d.Events, byID)
	}
	return d.Events
}
