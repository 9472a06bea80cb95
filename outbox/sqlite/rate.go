package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

const nextAtSQL = `
SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), (SELECT next_at FROM outbox_rates WHERE name = ?1)`

const setNextAtSQL = `
INSERT INTO outbox_rates (name, next_at) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET next_at = excluded.next_at`

// maxAhead is how many intervals the next token may lie in the future. A later time comes from another
// rate, or from before the clock was set back, and is ignored.
const maxAhead = 1000

// TakeToken implements buffer.TokenBucket with the generic cell rate algorithm (ITU-T I.371). The time is
// computed here, because SQLite's clock counts milliseconds and a rate may need less.
func (b *Buffer) TakeToken(ctx context.Context, name string, requests int, per time.Duration) (wait time.Duration, err error) {
	every := max(1, (per+time.Duration(requests)-1)/time.Duration(requests)) // rounded up: no more than that many
	err = b.write(ctx, "taking a token of the shared rate", func(tx transaction) error {
		if missing, err := b.lacks(ctx, tx, ratesTable); err != nil || len(missing) > 0 {
			return errors.Join(err, notReady(b, missing))
		}
		var (
			nowText  string
			nextText sql.NullString
		)
		if err := tx.row(ctx, nextAtSQL, name).Scan(&nowText, &nextText); err != nil {
			return err
		}
		now, err := time.Parse(db.TimeFormat, nowText)
		if err != nil {
			return err
		}
		next := now
		if nextText.Valid {
			at, err := time.Parse(time.RFC3339Nano, nextText.String)
			if err != nil {
				return errors.New("outbox_rates.next_at is not a time; delete the row")
			}
			if latest := now.Add(maxAhead * every); at.After(latest) {
				at = latest
			}
			if at.After(now) {
				next = at
			}
		}
		wait = next.Sub(now)
		_, err = tx.exec(ctx, setNextAtSQL, name, next.Add(every).UTC().Format("2006-01-02T15:04:05.000000000Z"))
		return err
	})
	return wait, err
}
