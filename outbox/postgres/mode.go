package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

func (c Config) claimRequest() claimmode.Request {
	return claimmode.Request{Claim: c.Claim, Ordered: c.Ordered, Custom: c.Own.Is()}
}

// preferredMode is the mode that this relay would store.
func (b *Buffer) preferredMode(t *table) string {
	return b.config.claimRequest().Preferred(t.rangeIneligible == "")
}

// ClaimMode returns the mode in which this relay claims; "" before it has seen the database.
func (b *Buffer) ClaimMode() buffer.ClaimMode {
	if mode := b.mode.Load(); mode != nil {
		return claimmode.Public(*mode)
	}
	return ""
}

// claimBy claims in a mode.
func (b *Buffer) claimBy(ctx context.Context, t *table, mode string, limit int, lease time.Duration) (*buffer.Lease, error) {
	switch {
	case mode == claimmode.StampKey:
		return b.claimInOrder(ctx, t, limit, lease)
	case mode == claimmode.Range:
		return b.claimAcross(ctx, t, limit, lease, b.claimRanged)
	case t.own != nil:
		return b.claimAcross(ctx, t, limit, lease, b.claimOwn)
	}
	return b.claimAcross(ctx, t, limit, lease, b.claimStamped)
}

// modeChanged is the error of a claim that found another mode than its own in outbox_buffers;
// "": the row was lost, for example with a TRUNCATE.
type modeChanged string

func (m modeChanged) Error() string { return "the buffer is claimed by " + string(m) }

// negotiate stores the mode that this relay prefers if the ledger is empty. Otherwise it follows
// the stored mode if it can.
func (b *Buffer) negotiate(ctx context.Context, t *table, stored string) error {
	mode := b.preferredMode(t)
	defer func() { b.mode.Store(&mode) }()
	if stored == mode {
		return nil
	}
	if claimmode.Known(stored) {
		changed, err := b.changeMode(ctx, t, stored, mode)
		if err != nil || changed {
			return err
		}
		if b.config.claimRequest().CanFollow(stored) {
			mode = stored
			return nil
		}
	}
	return &claimmode.ConflictError{Buffer: t.Buffer, Stored: stored, Preferred: mode}
}

const ledgerIsUsedSQL = `
SELECT FROM outbox_batches WHERE buffer = $1 LIMIT 1`

// A claim under way in another mode locked the ledger before it took its snapshot. So either this
// lock waits for it and sees its batch, or the claim waits and sees the new mode.
const (
	lockLedgerSQL = `
LOCK TABLE outbox_batches IN SHARE MODE`

	changeModeSQL = `
UPDATE outbox_buffers SET claim = $2
WHERE buffer = $1 AND claim = $3 AND NOT EXISTS (SELECT FROM outbox_batches WHERE buffer = $1)`
)

// changeMode stores another mode if the ledger is empty.
func (b *Buffer) changeMode(ctx context.Context, t *table, from, to string) (bool, error) {
	var used, changed int64
	err := b.db.RoundTrip(ctx, []pg.Step{pg.ReadTx(b.db.StatementTimeout), {SQL: t.SQL(ledgerIsUsedSQL), Args: []string{t.Buffer}, Affected: &used}})
	if err == nil && used == 0 {
		err = b.db.Transact(
			ctx, b.db.WriteTx(b.db.StatementTimeout, "lock_timeout", pg.Milliseconds(t.LockTimeout), "synchronous_commit", "on"),
			pg.Step{SQL: claimLockSQL, Args: []string{t.Buffer}},
			pg.Step{SQL: t.SQL(lockLedgerSQL)},
			pg.Step{SQL: t.SQL(changeModeSQL), Args: []string{t.Buffer, to, from}, Affected: &changed},
		)
	}
	if pg.Code(err) == pg.CodeLockTimeout { // the ledger is in use
		return false, nil
	}
	return changed > 0, err
}

// upgradeInterval is how often a relay that follows another mode tries to store its own.
const upgradeInterval = time.Second

// upgrade stores the preferred mode if this relay follows another one and the ledger is empty.
func (b *Buffer) upgrade(ctx context.Context, t *table, mode string) (changed bool, err error) {
	preferred := b.preferredMode(t)
	if mode == preferred {
		return false, nil
	}
	now := time.Now().UnixNano()
	if next := b.upgradeNext.Load(); now < next || !b.upgradeNext.CompareAndSwap(next, now+int64(upgradeInterval)) {
		return false, nil
	}
	return b.changeMode(ctx, t, mode, preferred)
}

// errUnorderedBatches is the error of a claim while there are batches whose keys nobody knows.
func errUnorderedBatches(t *table, n int64) error {
	return fmt.Errorf("%w: %d batches of buffer %s were claimed by a relay without order: key; claiming resumes when they are done. Stop that relay",
		buffer.ErrNotReady, n, t.Buffer)
}
