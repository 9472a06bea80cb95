package ledger

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// DeadLettersSuffix is the suffix of the ledger of the dead-letter hook.
const DeadLettersSuffix = " dead letters"

// Ledger is the live batches of one buffer: its rows of outbox_batches.
type Ledger struct {
	base *Base
	// suffix distinguishes the rows of the dead-letter hook from those of the buffer.
	suffix string
	// sink is the one whose batches these are; see [DefaultSink] and [Unrouted].
	sink string
	// dueAfter is where the live batches begin on the ledger's time line.
	dueAfter func() time.Time
	// keeps: a DELETE left events, so that deletes are no longer prepared. A prepared one that a rule replaces by nothing
	// depends on no table: PostgreSQL does not plan it anew when the rule is dropped.
	keeps atomic.Bool
	seq   SeqLine
}

const (
	// DefaultSink is the sink of a buffer that has one.
	DefaultSink = "default"
	// Unrouted is the sink of a batch that was claimed for several, and not given to them yet.
	Unrouted = buffer.Unrouted
)

// New returns the ledger of the rows that name the buffer with a suffix, and a sink. No live batch is due before dueAfter.
func New(base *Base, suffix, sink string, dueAfter func() time.Time) *Ledger {
	return &Ledger{base: base, suffix: suffix, sink: sink, dueAfter: dueAfter}
}

// routed reports whether the batches are of one of several sinks, with which they may share events. Those of a dead-letter hook share none.
func (l *Ledger) routed() bool { return l.sink != DefaultSink && l.suffix == "" }

// SinkName is the name that the sink has now.
func (l *Ledger) SinkName() string {
	if l.base.Current == nil {
		return l.sink
	}
	return l.base.Current(l.sink)
}

// name is how the rows name their buffer.
func (l *Ledger) name(t *Tables) string { return t.Buffer + l.suffix }

const renewSQL = `
UPDATE outbox_batches SET due_at = clock_timestamp() + $4::interval
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state IN ('leased', 'delivered')`

// Renew implements buffer.Claimer.
func (l *Ledger) Renew(ctx context.Context, batch *buffer.Lease, lease time.Duration) error {
	ends := time.Now().Add(lease)
	err := l.update(ctx, "renewing a lease", batch, renewSQL, []string{pg.Interval(lease)})
	if err == nil {
		batch.Ends = ends
	}
	return err
}

// Events that the sink has hold no key.
const markDeliveredSQL = `
UPDATE outbox_batches
SET state = 'delivered', delivered = $4::bigint[], due_at = clock_timestamp() + $5::interval, error = NULL,
    lanes = CASE WHEN cardinality($4::bigint[]) < events THEN lanes ELSE '{}' END
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state <> 'waiting'`

// deliveredRetry is how long a delivered batch waits if its events are locked.
const deliveredRetry = time.Second

// MarkDelivered implements buffer.Settler.
func (l *Ledger) MarkDelivered(ctx context.Context, batch *buffer.Lease, delivered []int64) error {
	return l.update(ctx, "marking a batch delivered", batch, markDeliveredSQL, []string{pg.IDArray(delivered), pg.Interval(deliveredRetry)},
		"synchronous_commit", "off")
}

const putOffSQL = `
UPDATE outbox_batches SET due_at = clock_timestamp() + $4::interval, error = $5
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state = 'delivered'`

// putOff lets a batch wait whose delivery is recorded, because its events cannot be deleted now.
func (l *Ledger) putOff(ctx context.Context, batch *buffer.Lease, wait time.Duration, why error) error {
	return l.update(ctx, "putting off a delete", batch, putOffSQL, []string{pg.Interval(wait), l.base.DB.Text(why.Error())}, "synchronous_commit", "off")
}

// update changes the batch's row, if this lease is still its last. args are the parameters from $4 on.
func (l *Ledger) update(ctx context.Context, doing string, batch *buffer.Lease, sql string, args []string, settings ...string) error {
	t, err := l.base.Ready(ctx)
	if err != nil {
		return err
	}
	var updated int64
	err = l.base.DB.Transact(ctx, l.base.DB.WriteTx(l.base.DB.StatementTimeout, settings...), pg.Step{
		SQL: t.SQL(sql), Args: append([]string{l.name(t), batch.GroupID.String(), pg.Int(batch.LeaseNo)}, args...), Affected: &updated,
	})
	switch {
	case err != nil:
		return l.base.Explain(ctx, doing, err)
	case updated == 0:
		return buffer.ErrLeaseLost
	}
	return nil
}
