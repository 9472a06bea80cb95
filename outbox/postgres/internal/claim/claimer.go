// Package claim makes batches of unclaimed events. A claim writes the batch's ledger row, and either leaves the
// events alone or stamps them with the group_id:
//
//   - by range, which `auto` takes where ids grow by a sequence: the ledger row has the ids of the batch, so an
//     event is written once and deleted once. Claims wait for each other.
//   - by stamp: claims write the group_id on each event, and skip what another transaction has locked.
//   - by stamp in order, for `order: key`: claims wait for each other and skip the keys of live batches.
//
// One mode is stored for all relays on a buffer. It changes only while the ledger is empty.
package claim

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/scanwindow"
	"github.com/outboxrelay/relay/outbox/postgres/internal/delayed"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// Claimer claims the events of one buffer.
type Claimer struct {
	base       *ledger.Base
	watermarks *watermark.Watermarks
	request    claimmode.Request
	window     scanwindow.Window
	// stamping holds an element for each claim by stamp that is under way.
	stamping chan struct{}
	turns    *turns
	mode     atomic.Pointer[string] // nil before the database was seen
	// upgradeNext is when a relay that follows another mode next tries to store its own.
	upgradeNext atomic.Int64 // Unix nanoseconds
}

// New returns the claimer of a buffer.
func New(base *ledger.Base, watermarks *watermark.Watermarks, request claimmode.Request) *Claimer {
	return &Claimer{base: base, watermarks: watermarks, request: request, stamping: make(chan struct{}, maxStamping), turns: newTurns()}
}

// InRange claims in a range of ids. The error is ModeChanged if another mode is stored.
type InRange func(ctx context.Context, t *ledger.Tables, limit int, lease time.Duration, in watermark.Range) (
	batch *buffer.Lease, start *Start, err error)

// ClaimBy claims in the stored mode. stamp claims by stamp.
func (c *Claimer) ClaimBy(ctx context.Context, t *ledger.Tables, stamp InRange, limit int, lease time.Duration) (*buffer.Lease, error) {
	if err := c.base.Own(ctx, t); err != nil {
		return nil, err
	}
	for tries := 0; ; tries++ {
		mode := *c.mode.Load()
		batch, err := c.claim(ctx, t, mode, stamp, limit, lease)
		again := false
		if stored, ok := errors.AsType[ModeChanged](err); ok {
			if stored == "" {
				_, err = c.Register(ctx, t)
			} else {
				err = c.negotiate(ctx, t, string(stored))
			}
			again = err == nil
		} else if err == nil && batch == nil {
			again, err = c.upgrade(ctx, t, mode)
		}
		if !again || tries == 2 {
			return batch, c.base.Explain(ctx, "claiming a batch", err)
		}
	}
}

func (c *Claimer) claim(ctx context.Context, t *ledger.Tables, mode string, stamp InRange, limit int, lease time.Duration) (*buffer.Lease, error) {
	switch mode {
	case claimmode.StampKey:
		return c.claimInOrder(ctx, t, limit, lease)
	case claimmode.Range:
		turn, err := c.turns.take(ctx)
		if turn == nil {
			return nil, err
		}
		batch, err := c.claimFrom(func(r watermark.Range, last bool) (*buffer.Lease, *Start, error) {
			return c.claimRange(ctx, t, limit, lease, r, func(events int) { turn.end(last && events < limit) })
		}, c.lookForDue(ctx, t, limit))
		turn.end(batch == nil && err == nil)
		return batch, err
	}
	return c.claimFrom(func(r watermark.Range, _ bool) (*buffer.Lease, *Start, error) {
		return stamp(ctx, t, limit, lease, r)
	}, c.lookForDue(ctx, t, limit))
}

// claimFrom claims where the watermarks say, until something is found; last: there is nowhere else to look. Delayed events that are due
// take turns with the others.
func (c *Claimer) claimFrom(claim func(r watermark.Range, last bool) (*buffer.Lease, *Start, error), look func() error) (*buffer.Lease, error) {
	claimDue := func(r watermark.Range) (*buffer.Lease, error) {
		batch, start, err := claim(r, false)
		if err != nil {
			return nil, err
		}
		c.watermarks.Claimed(r, batch, start.Sequence)
		return batch, nil
	}
	due, waits, err := c.firstDue(claimDue)
	if due != nil || err != nil {
		return due, err
	}
	batch, err := c.claimOthers(func(r watermark.Range, last bool) (*buffer.Lease, *Start, error) { return claim(r, last && !waits) })
	if batch != nil || err != nil {
		return batch, err
	}
	return c.restDue(claimDue, look)
}

// firstDue claims delayed events that are due, if it is their turn. waits: there are some, and it is not.
func (c *Claimer) firstDue(claim func(r watermark.Range) (*buffer.Lease, error)) (batch *buffer.Lease, waits bool, err error) {
	for batch == nil && err == nil {
		r, ok, first, more := c.watermarks.TakeDue()
		switch {
		case !ok:
			return nil, more, nil
		case !first:
			c.watermarks.PutBackDue(r)
			return nil, true, nil
		}
		batch, err = c.claimDue(r, claim)
	}
	return batch, false, err
}

// claimDue claims in one range.
func (c *Claimer) claimDue(r watermark.Range, claim func(r watermark.Range) (*buffer.Lease, error)) (*buffer.Lease, error) {
	batch, err := claim(r)
	if batch != nil && c.watermarks.MoreDue() {
		batch.Cut = true
	}
	return batch, err
}

// restDue claims delayed events that are due, whose turn it is not, because there are no others.
func (c *Claimer) restDue(claim func(r watermark.Range) (*buffer.Lease, error), look func() error) (batch *buffer.Lease, err error) {
	for looked := false; batch == nil && err == nil; {
		r, ok, _, more := c.watermarks.TakeDue()
		switch {
		case ok:
			batch, err = c.claimDue(r, claim)
		case more && !looked: // once: it may find what others have locked
			looked, err = true, look()
		default:
			return nil, nil
		}
	}
	return batch, err
}

// lookForDue returns a function that looks for delayed events that are due. Counts look too; a claim does when a count found more than
// it may.
func (c *Claimer) lookForDue(ctx context.Context, t *ledger.Tables, limit int) func() error {
	return func() error {
		var found delayed.Found
		err := c.base.DB.Transact(ctx, c.base.DB.BatchTx(c.base.DB.StatementTimeout), delayed.Look(c.base, t, c.watermarks, lookAhead*limit, &found))
		if err == nil {
			c.watermarks.FoundDue(found.Due)
		}
		return err
	}
}

// lookAhead is how many batches a look of a claim finds.
const lookAhead = 20

// claimOthers claims where the watermarks say, but for delayed events below the floor.
func (c *Claimer) claimOthers(claim func(r watermark.Range, last bool) (*buffer.Lease, *Start, error)) (*buffer.Lease, error) {
	for tries := 0; tries < 2; tries++ {
		void := false
		ranges := c.watermarks.Ranges()
		for i, r := range ranges {
			batch, start, err := claim(r, i == len(ranges)-1)
			if err != nil {
				return nil, err
			}
			void = c.watermarks.Claimed(r, batch, start.Sequence)
			if batch != nil {
				return batch, nil
			}
			if void {
				break
			}
		}
		if !void {
			break
		}
	}
	return nil, nil
}

// beginSQL reads the sequence before the claim's own snapshot is taken. Reading it locks it. TRUNCATE ... RESTART
// IDENTITY locks first the table and then the sequence; so does this statement, which names the
// table, and neither deadlocks with the other. $3 is a text, so that the table's oid is looked up while it is locked.
const beginSQL = `
SELECT coalesce(pg_sequence_last_value($1::regclass), 0), clock_timestamp(),
       b.claim, b.pipeline, $3::text::regclass::oid::int8, pg_relation_filenode($1::regclass)::int8, pg_postmaster_start_time(), b.routed
FROM (SELECT) one LEFT JOIN outbox_buffers b ON b.buffer = $2
WHERE NOT EXISTS (SELECT FROM outbox_events WHERE false)`

// Start is what a claim reads before it looks.
type Start struct {
	watermark.Sequence
	Mode string
	// Routed reports whether events are claimed for several sinks.
	Routed bool
	clock  time.Time
	ends   time.Time
}

// Begin returns the first two steps of a claim. reset is called when its transaction begins, or begins again.
func (c *Claimer) Begin(t *ledger.Tables, lease time.Duration, reset func([][]byte) error) (s *Start, settings, begin pg.Step) {
	s = &Start{ends: time.Now().Add(lease)}
	return s, c.base.DB.BatchTx(c.base.DB.StatementTimeout), pg.Step{
		Prepare: true, SQL: t.SQL(beginSQL), Args: []string{t.Sequence, t.Buffer, t.Events},
		Row: func(v [][]byte) error {
			s.LastValue, s.clock, s.Mode = pg.ReadInt8(v[0]), pg.ReadTime(v[1]), string(v[2])
			s.Numbering = t.Numbering(v[4], v[5], v[6])
			s.Routed = pg.ReadBool(v[7])
			if owner := string(v[3]); owner != c.base.Pipeline {
				// It changed a moment ago. The next claim looks who it is, and this one is sent as it would have been then.
				c.base.Ownership.Saw(t.Buffer, owner, c.base.Pipeline, time.Time{})
			}
			return reset(nil)
		},
	}
}

// seenSQL reads the sequence once more, after the snapshot of a claim by stamp: see rangeSQL.
const seenSQL = `
SELECT coalesce(pg_sequence_last_value($1::regclass), 0)`

// Seen returns the step that follows a claim by stamp.
func (s *Start) Seen(t *ledger.Tables) pg.Step {
	return pg.Step{Prepare: true, SQL: seenSQL, Args: []string{t.Sequence}, Row: func(v [][]byte) error {
		s.LastValue = pg.ReadInt8(v[0])
		return nil
	}}
}

// ErrRouted is the error of a claim for a single sink if events are routed to several, and of one for several if they are not.
var ErrRouted = errors.New("the sinks of the buffer have changed")

// Differs returns why a claim in this mode found nothing that it may claim: ModeChanged or ErrRouted. nil: there was nothing.
func (s *Start) Differs(base *ledger.Base, mode string) error {
	switch {
	case s.Mode != mode:
		return ModeChanged(s.Mode)
	case s.Routed != (base.Sinks != nil):
		return ErrRouted
	}
	return nil
}

// Lease returns the first lease of a batch.
func (s *Start) Lease(groupID uuid.UUID) buffer.Lease {
	return buffer.Lease{
		Batch: buffer.Batch{GroupID: groupID}, LeaseNo: 1, Ends: s.ends, UnfinishedLeases: 1, ClaimedAt: s.clock, ClaimedLocal: time.Now(),
	}
}

// Stamping waits until a claim by stamp may begin. The caller must call done.
func (c *Claimer) Stamping(ctx context.Context) (done func(), err error) {
	select {
	case c.stamping <- struct{}{}:
		return func() { <-c.stamping }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Example returns a claim in a mode with parameters, for EXPLAIN. Those of a claim by stamp suit a custom table too.
func Example(t *ledger.Tables, mode buffer.ClaimMode) (sql string, args []string) {
	group, most, lease := buffer.NewGroupID().String(), pg.Int(math.MaxInt64), pg.Interval(time.Minute)
	if mode == buffer.ClaimRange {
		return t.SQL(rangeSQL), []string{t.Buffer, "0", "0", most, "f", "1000", group, lease, "", t.Sequence, ledger.DefaultSink}
	}
	return t.SQL(stampSQL), []string{t.Buffer, group, "0", most, "1000", lease, "", ledger.DefaultSink}
}
