package postgres

import (
	"context"
	"fmt"

	"github.com/outboxrelay/relay/outbox"
)

// claimStampKey is the claim mode where order is kept by key: stamped as ever, and
// the ledger knows each batch's lanes.
const claimStampKey = "stamp key"

// claimMode is the mode that this relay claims in.
func (c Config) claimMode() string {
	if c.Ordered {
		return claimStampKey
	}
	return string(outbox.ClaimStamp)
}

const ledgerIsUsedSQL = `
SELECT FROM outbox_batches WHERE buffer = $1 LIMIT 1`

// A claim in the other mode that is under way has locked the ledger before it took
// its snapshot. So it is either waited for here, and seen, or it waits, and sees the
// new mode.
const (
	lockLedgerSQL = `
LOCK TABLE outbox_batches IN SHARE MODE`

	changeModeSQL = `
UPDATE outbox_buffers SET claim = $2
WHERE buffer = $1 AND claim = $3 AND NOT EXISTS (SELECT FROM outbox_batches WHERE buffer = $1)`
)

// changeMode makes the buffer's claim mode this relay's, if it is the other one of the
// two that stamp and no batch lives that was claimed by it; else the error says what
// to do.
func (b *Buffer) changeMode(ctx context.Context, t *table, from string) error {
	to := b.config.claimMode()
	if from != string(outbox.ClaimStamp) && from != claimStampKey {
		return otherMode(t, from, to)
	}
	var used, changed int64
	err := b.roundTrip(ctx, []step{{sql: t.sql(ledgerIsUsedSQL), args: []string{t.buffer}, affected: &used}})
	if err == nil && used == 0 {
		err = b.transact(
			ctx, t.writing(b.patience, "lock_timeout", milliseconds(t.lockTimeout), "synchronous_commit", "on"),
			step{sql: claimLockSQL, args: []string{t.buffer}},
			step{sql: t.sql(lockLedgerSQL)},
			step{sql: t.sql(changeModeSQL), args: []string{t.buffer, to, from}, affected: &changed},
		)
	}
	switch {
	case err != nil:
		return err
	case changed == 0:
		return otherMode(t, from, to)
	}
	return nil
}

func otherMode(t *table, from, to string) error {
	return fmt.Errorf("%w: buffer %s is claimed by %q and this relay would claim by %q; two ways on one table lose track of each other: stop the others, let outbox_batches run empty, then UPDATE outbox_buffers SET claim = '%s' WHERE buffer = '%s'",
		outbox.ErrNotReady, t.buffer, from, to, to, t.buffer)
}

// unorderedBatches is why nothing is claimed while batches live that somebody else
// made: nobody knows which keys they hold.
func unorderedBatches(t *table, n int64) error {
	return fmt.Errorf("%w: %d batches of buffer %s were made by a relay without order: key; claiming goes on when they are done: stop that relay",
		outbox.ErrNotReady, n, t.buffer)
}
