package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// claimStampKey is the claim mode where order is kept by key: a live batch holds its
// keys' lanes, and nothing of theirs is claimed while it lives. A lane is a key's
// hash: two keys in one lane wait for each other, and no harm is done.
const claimStampKey = "stamp key"

// The other modes, as they are stored.
const (
	claimStamp      = string(buffer.ClaimStamp)
	claimOptimistic = string(buffer.ClaimOptimistic)
	claimRange      = string(buffer.ClaimRange)
)

const claimModeSQL = `
SELECT claim FROM outbox_buffers WHERE buffer = ?1`

const changeModeSQL = `
UPDATE outbox_buffers SET claim = ?2
WHERE buffer = ?1 AND claim = ?3 AND NOT EXISTS (SELECT 1 FROM outbox_batches WHERE buffer = ?1)`

var (
	errOtherMode = errors.New("this relay does not know the mode")
	errModeInUse = errors.New("batches of the other mode live")
)

// mode returns how the buffer is claimed, when it is as this relay does it, or is from
// now on: it changes only while no batch lives. `auto` follows what is stored until
// then.
func (b *Buffer) mode(ctx context.Context, tx transaction) (string, error) {
	table := b.config.Table
	from, err := b.stored(ctx, tx)
	if err != nil {
		return "", err
	}
	to, err := b.wanted(ctx, tx)
	if err != nil {
		return "", err
	}
	claims := to
	defer func() { b.claims.Store(&claims) }()
	if from == to {
		return to, nil
	}
	err = errOtherMode
	switch from {
	case claimStamp, claimStampKey, claimOptimistic, claimRange:
		changed, changeErr := tx.exec(ctx, changeModeSQL, table, to, from)
		switch {
		case changeErr != nil:
			return "", changeErr
		case changed > 0:
			return to, nil
		case b.config.Claim == buffer.ClaimAuto && !b.config.Ordered && from != claimStampKey:
			claims = from
			return from, nil
		}
		err = errModeInUse
	}
	return "", fmt.Errorf("%w: buffer %s is claimed by %q and this relay would claim by %q (%w); two ways on one table lose track of each other: stop the others, let outbox_batches run empty, then UPDATE outbox_buffers SET claim = '%s' WHERE buffer = '%s'",
		buffer.ErrNotReady, table, from, to, err, to, strings.ReplaceAll(table, "'", "''"))
}

// ClaimMode is the mode that this relay claims in; "" as long as it has not seen the
// file.
func (b *Buffer) ClaimMode() buffer.ClaimMode {
	mode := b.claims.Load()
	switch {
	case mode == nil:
		return ""
	case *mode == claimStampKey:
		return buffer.ClaimStamp
	}
	return buffer.ClaimMode(*mode)
}

// stored is the mode that the buffer is claimed in by whoever claims.
func (b *Buffer) stored(ctx context.Context, tx transaction) (mode string, err error) {
	err = tx.row(ctx, claimModeSQL, b.config.Table).Scan(&mode)
	if errors.Is(err, sql.ErrNoRows) {
		err = fmt.Errorf("%w: buffer %s is not in outbox_buffers: %s", buffer.ErrNotReady, b.config.Table, migrateCommand)
	}
	return mode, err
}

// wanted is the mode that the configuration asks for, or stamp where range does not hold.
func (b *Buffer) wanted(ctx context.Context, tx transaction) (string, error) {
	switch {
	case b.own != nil:
		return claimStamp, nil
	case b.config.Ordered:
		return claimStampKey, nil
	case b.config.Claim == buffer.ClaimStamp, b.config.Claim == buffer.ClaimOptimistic:
		return string(b.config.Claim), nil
	}
	grows, err := b.grows(ctx, tx)
	if err != nil || grows {
		return claimRange, err
	}
	return claimStamp, nil
}

// An id is the table's row number and never handed out again: then it grows.
const growsSQL = `
SELECT EXISTS (SELECT 1 FROM pragma_table_info(?1) WHERE name = 'id' AND upper(type) = 'INTEGER' AND pk = 1)
   AND EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1 AND sql LIKE '%autoincrement%')`

func (b *Buffer) grows(ctx context.Context, tx transaction) (grows bool, err error) {
	err = tx.row(ctx, growsSQL, b.config.Table).Scan(&grows)
	return grows, err
}

// Warnings says what is done otherwise than it was asked for, a sentence each; none
// where nothing is, or where the file cannot be looked at, which Check says.
func (b *Buffer) Warnings(ctx context.Context) []string {
	if b.config.Claim != buffer.ClaimRange {
		return nil
	}
	unfit, err := b.unfit(ctx)
	if err != nil || unfit == "" {
		return nil
	}
	return []string{"claim: range needs ids that only grow, and " + unfit + ": its events are claimed by stamp"}
}

// unfit says why range claims do not suit the table; "" where they do.
func (b *Buffer) unfit(ctx context.Context) (string, error) {
	grows := false
	err := b.read(ctx, "looking at the key", func(tx transaction) (err error) {
		grows, err = b.grows(ctx, tx)
		return err
	})
	if err != nil || grows {
		return "", err
	}
	return "id of table " + quote(b.config.Table) + " is no INTEGER PRIMARY KEY AUTOINCREMENT", nil
}
