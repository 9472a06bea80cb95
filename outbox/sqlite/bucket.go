package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const nextAtSQL = `
SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), (SELECT next_at FROM outbox_rates WHERE name = ?1)`

const setNextAtSQL = `
INSERT INTO outbox_rates (name, next_at) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET next_at = excluded.next_at`

const hasRatesSQL = `
SELECT EXISTS (SELECT 1 FROM pragma_table_info('outbox_rates') WHERE name = 'next_at')`

// lacksRates tells whether the table is missing.
func (b *Buffer) lacksRates(ctx context.Context) bool {
	there := true
	err := b.db.QueryRowContext(ctx, hasRatesSQL).Scan(&there)
	return err == nil && !there
}

// TakeToken implements sink.Bucket: the generic cell rate algorithm (ITU-T I.371). The
// sum is made here, because SQLite's clock counts milliseconds and a rate may not. A time
// far ahead is left over from another rate, or from before the clock was set back:
// nobody waits for that.
func (b *Buffer) TakeToken(ctx context.Context, name string, requests int, per time.Duration) (wait time.Duration, err error) {
	every := max(1, (per+time.Duration(requests)-1)/time.Duration(requests)) // rounded up: no more than that many
	err = b.write(ctx, "taking a token of the shared rate", func(tx transaction) error {
		var there bool
		if err := tx.row(ctx, hasRatesSQL).Scan(&there); err != nil {
			return err
		}
		if !there {
			return fmt.Errorf("%w: table outbox_rates does not exist: %s", buffer.ErrNotReady, migrateCommand)
		}
		var (
			nowText  string
			nextText sql.NullString
		)
		if err := tx.row(ctx, nextAtSQL, name).Scan(&nowText, &nextText); err != nil {
			return err
		}
		now, err := time.Parse(timeFormat, nowText)
		if err != nil {
			return err
		}
		next := now
		if nextText.Valid {
			at, err := time.Parse(time.RFC3339Nano, nextText.String)
			if err != nil {
				return errors.New("outbox_rates.next_at is no time; delete the row")
			}
			if most := now.Add(1000 * every); at.After(most) {
				at = most
			}
			if at.After(now) {
				next = at
			}
		}
		wait = next.Sub(now)
		_, err = tx.exec(ctx, setNextAtSQL, name, next.Add(every).UTC().Format("2006-01-02T15:04:05.000000000Z"))
		return err
	})
	if err != nil {
		return 0, err
	}
	return wait, nil
}
