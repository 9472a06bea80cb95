package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/notready"
)

const claimModeSQL = `
SELECT claim, routed FROM outbox_buffers WHERE buffer = ?1`

const changeModeSQL = `
UPDATE outbox_buffers SET claim = ?2
WHERE buffer = ?1 AND claim = ?3 AND NOT EXISTS (SELECT 1 FROM outbox_batches WHERE buffer = ?1)`

// negotiate returns the mode in which this relay claims, and whether events are routed to several sinks. It stores the preferred mode
// while the ledger is empty; otherwise it follows the stored one if it can.
func (b *Buffer) negotiate(ctx context.Context, tx transaction) (claim string, routed bool, err error) {
	stored, routed, err := b.storedMode(ctx, tx)
	if err != nil {
		return "", false, err
	}
	request := b.config.claimRequest()
	mode := request.Preferred(true)
	defer func() { b.mode.Store(&mode) }()
	if stored == mode {
		return mode, routed, nil
	}
	if claimmode.Known(stored) {
		switch changed, err := tx.exec(ctx, changeModeSQL, b.config.Table, mode, stored); {
		case err != nil:
			return "", false, err
		case changed > 0:
			return mode, routed, nil
		case request.CanFollow(stored):
			mode = stored
			return mode, routed, nil
		}
	}
	return "", false, &claimmode.ConflictError{Buffer: b.config.Table, Stored: stored, Preferred: mode}
}

// ClaimMode returns the mode in which this relay claims; "" before it has seen the file.
func (b *Buffer) ClaimMode() buffer.ClaimMode {
	if mode := b.mode.Load(); mode != nil {
		return claimmode.Public(*mode)
	}
	return ""
}

// storedMode returns the mode in which all relays on the buffer claim, and whether its events are routed to several sinks.
func (b *Buffer) storedMode(ctx context.Context, tx transaction) (mode string, routed bool, err error) {
	err = tx.row(ctx, claimModeSQL, b.config.Table).Scan(&mode, &routed)
	if errors.Is(err, sql.ErrNoRows) {
		err = notready.New("", []buffer.Finding{problem("buffer "+b.config.Table+" is not in outbox_buffers", notready.MigrateCommand)})
	}
	return mode, routed, err
}
