package ledger

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// An UPDATE that changes nothing is no error to PostgreSQL: a BEFORE trigger returned NULL or OLD. A batch whose events do not
// carry its group_id would have none, and its events would be claimed again for ever. So each statement that stamps events
// inserts the ledger row too, and counts the events that carry the group_id: if any is missing, the number is NULL, and
// the table refuses the row. That costs no statement, and the transaction is rolled back.

const updateRulesSQL = `
SELECT EXISTS (SELECT FROM pg_rewrite WHERE ev_class = $1::regclass AND ev_type = '2' AND is_instead AND ev_enabled IN ('O', 'A'))`

// Unstamped returns a *buffer.UnstampedError if err is that of such a statement; otherwise err.
func (t *Tables) Unstamped(ctx context.Context, db *pg.DB, err error) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	unstamped := pgErr.Code == pg.CodeNotNull && pgErr.TableName == "outbox_batches"
	if pgErr.Code == pg.CodeResultChanged {
		step := pg.Step{SQL: updateRulesSQL, Args: []string{t.Events}, Row: func(v [][]byte) error {
			unstamped = pg.ReadBool(v[0])
			return nil
		}}
		if ruleErr := db.Transact(ctx, pg.ReadTx(db.StatementTimeout), step); ruleErr != nil {
			return err
		}
	}
	if unstamped {
		return &buffer.UnstampedError{Table: t.Buffer}
	}
	return err
}
