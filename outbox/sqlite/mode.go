package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/notready"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

const claimModeSQL = `
SELECT claim FROM outbox_buffers WHERE buffer = ?1`

const changeModeSQL = `
UPDATE outbox_buffers SET claim = ?2
WHERE buffer = ?1 AND claim = ?3 AND NOT EXISTS (SELECT 1 FROM outbox_batches WHERE buffer = ?1)`

// negotiate returns the mode in which this relay claims. It stores the preferred one while the ledger
// is empty; otherwise it follows the stored one if it can.
func (b *Buffer) negotiate(ctx context.Context, tx transaction) (string, error) {
	stored, err := b.storedMode(ctx, tx)
	if err != nil {
		return "", err
	}
	request := b.config.claimRequest()
	mode := request.Preferred(true)
	if mode == claimmode.Range {
		eligible, err := b.rangeEligible(ctx, tx)
		if err != nil {
			return "", err
		}
		mode = request.Preferred(eligible)
	}
	defer func() { b.mode.Store(&mode) }()
	if stored == mode {
		return mode, nil
	}
	if claimmode.Known(stored) {
		changed, err := tx.exec(ctx, changeModeSQL, b.config.Table, mode, stored)
		if err != nil {
			return "", err
		}
		if changed > 0 {
			return mode, nil
		}
		if request.CanFollow(stored) {
			mode = stored
			return mode, nil
		}
	}
	return "", &claimmode.ConflictError{Buffer: b.config.Table, Stored: stored, Preferred: mode}
}

// ClaimMode returns the mode in which this relay claims; "" before it has seen the file.
func (b *Buffer) ClaimMode() buffer.ClaimMode {
	if mode := b.mode.Load(); mode != nil {
		return claimmode.Public(*mode)
	}
	return ""
}

// storedMode returns the mode in which all relays on the buffer claim.
func (b *Buffer) storedMode(ctx context.Context, tx transaction) (mode string, err error) {
	err = tx.row(ctx, claimModeSQL, b.config.Table).Scan(&mode)
	if errors.Is(err, sql.ErrNoRows) {
		err = notready.New("", []buffer.Finding{problem("buffer "+b.config.Table+" is not in outbox_buffers", notready.MigrateCommand)})
	}
	return mode, err
}

// An id that is the table's row number and never handed out again only grows.
const rangeEligibleSQL = `
SELECT EXISTS (SELECT 1 FROM pragma_table_info(?1) WHERE name = 'id' AND upper(type) = 'INTEGER' AND pk = 1)
   AND EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1 AND sql LIKE '%autoincrement%')`

func (b *Buffer) rangeEligible(ctx context.Context, tx transaction) (eligible bool, err error) {
	err = tx.row(ctx, rangeEligibleSQL, b.config.Table).Scan(&eligible)
	return eligible, err
}

// rangeIneligible returns why range claims do not suit the table; "" if they do.
func (b *Buffer) rangeIneligible(ctx context.Context) (why string, err error) {
	err = b.read(ctx, "reading the table's definition", func(tx transaction) error {
		eligible, err := b.rangeEligible(ctx, tx)
		if !eligible {
			why = fmt.Sprintf("id of table %s is not INTEGER PRIMARY KEY AUTOINCREMENT", db.Quote(b.config.Table))
		}
		return err
	})
	return why, err
}

// Warnings returns what is done otherwise than configured, a sentence each. It returns none if the file
// cannot be read, which Check reports.
func (b *Buffer) Warnings(ctx context.Context) []string {
	if b.config.Claim != buffer.ClaimRange {
		return nil
	}
	why, err := b.rangeIneligible(ctx)
	if err != nil || why == "" {
		return nil
	}
	return []string{"claim: range needs ids that only grow; " + why + ", so its events are claimed by stamp"}
}
