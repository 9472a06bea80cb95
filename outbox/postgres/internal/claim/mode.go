package claim

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// preferred is the mode that this relay would store.
func (c *Claimer) preferred(t *ledger.Tables) string {
	return c.request.Preferred(t.RangeIneligible.Text == "")
}

// ClaimMode returns the mode in which this relay claims; "" before it has seen the database.
func (c *Claimer) ClaimMode() buffer.ClaimMode {
	if mode := c.mode.Load(); mode != nil {
		return claimmode.Public(*mode)
	}
	return ""
}

const registerSQL = `
INSERT INTO outbox_buffers (buffer, claim) VALUES ($1, $2)
ON CONFLICT (buffer) DO UPDATE SET claim = outbox_buffers.claim
RETURNING claim, floor, numbering, coalesce(pipeline, ''), coalesce(owned_since, 'epoch'),
          (SELECT seqmin FROM pg_sequence WHERE seqrelid = $3::regclass)`

// Register reads the buffer's own row, or writes it the first time, and returns where the watermarks begin. A mode that
// cannot be changed yet is no error: live batches are taken over and sent, and claims return why nothing is
// claimed.
func (c *Claimer) Register(ctx context.Context, t *ledger.Tables) (w watermark.Stored, err error) {
	var stored string
	start, _, begin := c.Begin(t, 0, func([][]byte) error { return nil })
	err = c.base.DB.Transact(ctx, c.base.DB.WriteTx(c.base.DB.StatementTimeout), begin, pg.Step{SQL: t.SQL(registerSQL), Args: []string{t.Buffer, c.preferred(t), t.Sequence}, Row: func(v [][]byte) error {
		stored, w = string(v[0]), watermark.Stored{Floor: pg.ReadInt8(v[1]), Numbering: string(v[2]), Now: start.Sequence}
		if v[5] != nil {
			w.Start = watermark.Beginning(pg.ReadInt8(v[5]))
		}
		// Claims and counts return that it is another pipeline.
		c.base.Ownership.Saw(t.Buffer, string(v[3]), c.base.Pipeline, pg.ReadTime(v[4]))
		return nil
	}})
	if err != nil {
		return w, c.base.DB.ConnectError(err)
	}
	if err = c.base.LookElsewhere(ctx, t); err != nil {
		return w, err
	}
	if err = c.negotiate(ctx, t, stored); claimmode.InUse(err) {
		err = nil
	}
	return w, err
}

// ModeChanged is the error of a claim that found another mode than its own in outbox_buffers;
// "": the row was lost, for example with a TRUNCATE.
type ModeChanged string

func (m ModeChanged) Error() string { return "the buffer is claimed by " + string(m) }

// negotiate stores the mode that this relay prefers if the ledger is empty. Otherwise it follows
// the stored mode if it can.
func (c *Claimer) negotiate(ctx context.Context, t *ledger.Tables, stored string) error {
	mode := c.preferred(t)
	defer func() { c.mode.Store(&mode) }()
	if stored == mode {
		return nil
	}
	if claimmode.Known(stored) {
		changed, err := c.changeMode(ctx, t, stored, mode)
		if err != nil || changed {
			return err
		}
		if c.request.CanFollow(stored) {
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
func (c *Claimer) changeMode(ctx context.Context, t *ledger.Tables, from, to string) (bool, error) {
	var used, changed int64
	err := c.base.DB.RoundTrip(ctx, []pg.Step{pg.ReadTx(c.base.DB.StatementTimeout), {SQL: t.SQL(ledgerIsUsedSQL), Args: []string{t.Buffer}, Affected: &used}})
	if err == nil && used == 0 {
		err = c.base.DB.Transact(
			ctx, c.base.DB.WriteTx(c.base.DB.StatementTimeout, "lock_timeout", pg.Milliseconds(t.LockTimeout), "synchronous_commit", "on"),
			ledger.LockClaiming(t),
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
func (c *Claimer) upgrade(ctx context.Context, t *ledger.Tables, mode string) (changed bool, err error) {
	preferred := c.preferred(t)
	if mode == preferred {
		return false, nil
	}
	now := time.Now().UnixNano()
	if next := c.upgradeNext.Load(); now < next || !c.upgradeNext.CompareAndSwap(next, now+int64(upgradeInterval)) {
		return false, nil
	}
	return c.changeMode(ctx, t, mode, preferred)
}
