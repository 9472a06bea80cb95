package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The claim modes as outbox_buffers has them.
const (
	claimStamp = string(buffer.ClaimStamp)
	// claimStampKey is the mode where order is kept by key: stamped as ever, and
	// the ledger knows each batch's lanes.
	claimStampKey = "stamp key"
	claimRange    = string(buffer.ClaimRange)
)

// modes are those that are known here; in any other somebody else claims, who may be
// newer.
var modes = []string{claimStamp, claimStampKey, claimOptimistic, claimRange}

// best is the mode that this relay would claim in.
func (b *Buffer) best(t *table) string {
	switch {
	case b.config.Ordered:
		return claimStampKey
	case b.config.Own.Is(): // the projection finds events by their group_id
		return claimStamp
	case b.config.Claim == buffer.ClaimAuto || b.config.Claim == buffer.ClaimRange:
		if t.unfit != "" {
			return claimStamp
		}
		return claimRange
	}
	return string(b.config.Claim)
}

// follows tells whether this relay may claim in another mode than its best.
func (b *Buffer) follows(mode string) bool {
	switch {
	case b.config.Ordered || mode == claimStampKey:
		return false
	case b.config.Claim == buffer.ClaimRange: // and its best is stamp
		return mode == claimRange
	}
	return b.config.Claim == buffer.ClaimAuto
}

// ClaimMode is the mode that this relay claims in; "" as long as it has not seen the
// database.
func (b *Buffer) ClaimMode() buffer.ClaimMode {
	mode := b.mode.Load()
	switch {
	case mode == nil:
		return ""
	case *mode == claimStampKey:
		return buffer.ClaimStamp
	}
	return buffer.ClaimMode(*mode)
}

// claimBy claims in a mode.
func (b *Buffer) claimBy(ctx context.Context, t *table, mode string, limit int, lease time.Duration) (*buffer.Lease, error) {
	switch mode {
	case claimStampKey:
		return b.claimInOrder(ctx, t, limit, lease)
	case claimStamp:
		if t.own != nil {
			return b.claimAcross(ctx, t, limit, lease, b.claimOwn)
		}
		return b.claimAcross(ctx, t, limit, lease, b.claimStamped)
	case claimOptimistic:
		return b.claimFromWindow(ctx, t, limit, lease)
	case claimRange:
		return b.claimAcross(ctx, t, limit, lease, b.claimRanged)
	}
	return nil, fmt.Errorf("this relay does not know how to claim by %q", mode)
}

// storedMode is what a claim found in outbox_buffers, and is not its own mode; "": the
// row was lost, with a TRUNCATE for one.
type storedMode string

func (m storedMode) Error() string { return "the buffer is claimed by " + string(m) }

// agree brings the mode that is stored and that of this relay together. What is stored
// changes only while no batch lives; else the error says what to do, unless this
// relay can follow.
func (b *Buffer) agree(ctx context.Context, t *table, stored string) error {
	want := b.best(t)
	if stored == want {
		b.mode.Store(&want)
		return nil
	}
	if slices.Contains(modes, stored) {
		changed, err := b.changeMode(ctx, t, stored, want)
		switch {
		case err != nil:
			return err
		case changed:
			b.mode.Store(&want)
			return nil
		case b.follows(stored):
			b.mode.Store(&stored)
			return nil
		}
	}
	b.mode.Store(&want)
	return otherMode(t, stored, want)
}

const ledgerIsUsedSQL = `
SELECT FROM outbox_batches WHERE buffer = $1 LIMIT 1`

// A claim in another mode that is under way has locked the ledger before it took
// its snapshot. So it is either waited for here, and seen, or it waits, and sees the
// new mode.
const (
	lockLedgerSQL = `
LOCK TABLE outbox_batches IN SHARE MODE`

	changeModeSQL = `
UPDATE outbox_buffers SET claim = $2
WHERE buffer = $1 AND claim = $3 AND NOT EXISTS (SELECT FROM outbox_batches WHERE buffer = $1)`
)

// changeMode stores another mode, if no batch lives.
func (b *Buffer) changeMode(ctx context.Context, t *table, from, to string) (bool, error) {
	var used, changed int64
	err := b.db.RoundTrip(ctx, []pg.Step{pg.ReadTx(b.db.StatementTimeout), {SQL: t.sql(ledgerIsUsedSQL), Args: []string{t.buffer}, Affected: &used}})
	if err == nil && used == 0 {
		err = b.db.Transact(
			ctx, b.db.WriteTx(b.db.StatementTimeout, "lock_timeout", pg.Milliseconds(t.lockTimeout), "synchronous_commit", "on"),
			pg.Step{SQL: claimLockSQL, Args: []string{t.buffer}},
			pg.Step{SQL: t.sql(lockLedgerSQL)},
			pg.Step{SQL: t.sql(changeModeSQL), Args: []string{t.buffer, to, from}, Affected: &changed},
		)
	}
	if pg.Code(err) == pg.CodeLockTimeout { // somebody is at the ledger
		return false, nil
	}
	return changed > 0, err
}

// improveEvery is how often a relay that follows looks whether it may change the mode.
const improveEvery = time.Second

// improve changes the mode to the best one, when this relay follows another and
// nothing seems to live. It tells whether it did.
func (b *Buffer) improve(ctx context.Context, t *table, mode string) (bool, error) {
	if mode == b.best(t) {
		return false, nil
	}
	now := time.Now().UnixNano()
	if next := b.improveNext.Load(); now < next || !b.improveNext.CompareAndSwap(next, now+int64(improveEvery)) {
		return false, nil
	}
	changed, err := b.changeMode(ctx, t, mode, b.best(t))
	return changed, err
}

func otherMode(t *table, from, to string) error {
	return fmt.Errorf("%w: buffer %s is claimed by %q and this relay would claim by %q; two ways on one table lose track of each other: stop the others, let outbox_batches run empty, then UPDATE outbox_buffers SET claim = '%s' WHERE buffer = '%s'",
		buffer.ErrNotReady, t.buffer, from, to, to, t.buffer)
}

// unorderedBatches is why nothing is claimed while batches live that somebody else
// made: nobody knows which keys they hold.
func unorderedBatches(t *table, n int64) error {
	return fmt.Errorf("%w: %d batches of buffer %s were made by a relay without order: key; claiming goes on when they are done: stop that relay",
		buffer.ErrNotReady, n, t.buffer)
}
