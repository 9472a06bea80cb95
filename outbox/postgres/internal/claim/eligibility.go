package claim

import (
	"context"
	"fmt"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Range claims need ids that grow: a cursor passes each once, and late commits are between floor and cursor. With
// other ids all events would still be sent, but by scanning everything again and again; stamps are no worse
// there.
//
// A few ids given by hand do no harm. More of them, or an import that left its sequence behind, are another
// numbering. No other event is read: to look for the highest id could mean to walk over all dead rows at that
// end.
const (
	manualIDMargin = 1000

	idsSQL = `
SELECT s.seqincrement > 0, s.seqcycle,
       EXISTS (SELECT FROM pg_attribute a
               LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
               WHERE a.attrelid = $2::regclass AND a.attname = 'id' AND NOT a.attisdropped
                 AND (a.attidentity <> '' OR EXISTS (
                   SELECT FROM pg_depend WHERE classid = 'pg_attrdef'::regclass AND objid = d.oid
                     AND refclassid = 'pg_class'::regclass AND refobjid = s.seqrelid))),
       coalesce(pg_sequence_last_value(s.seqrelid), 0), has_table_privilege('pg_subscription_rel', 'SELECT')
FROM pg_sequence s WHERE s.seqrelid = $1::regclass`

	idBeyondSQL = `
SELECT id::bigint FROM outbox_events WHERE id > $1::bigint ORDER BY id LIMIT 1`

	// Read after the id: it may have been generated since the sequence was read first.
	lastValueSQL = `
SELECT coalesce(pg_sequence_last_value($1::regclass), 0)`

	subscribedSQL = `
SELECT FROM pg_subscription_rel WHERE srrelid = $1::regclass LIMIT 1`
)

// RangeIneligible returns why range claims do not suit the table, and how to fix that; zero if they do.
func RangeIneligible(ctx context.Context, db *pg.DB, t *ledger.Tables) (why buffer.Finding, err error) {
	var (
		there, grows, cycles, defaults, readable bool
		lastValue, subscribed                    int64
		beyond                                   bool
	)
	err = db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {SQL: idsSQL, Args: []string{t.Sequence, t.Events}, Row: func(v [][]byte) error {
		there, grows, cycles, defaults = true, pg.ReadBool(v[0]), pg.ReadBool(v[1]), pg.ReadBool(v[2])
		lastValue, readable = pg.ReadInt8(v[3]), pg.ReadBool(v[4])
		return nil
	}}})
	if err != nil {
		return why, err
	}
	steps := []pg.Step{
		pg.ReadTx(db.StatementTimeout, pg.PlanByPrimaryKey...),
	}
	if readable {
		steps = append(steps, pg.Step{SQL: subscribedSQL, Args: []string{t.Events}, Affected: &subscribed})
	}
	if err := db.Transact(ctx, steps...); err != nil {
		return why, err
	}
	if there {
		if beyond, err = idBeyond(ctx, db, t, &lastValue); err != nil {
			return why, err
		}
	}
	switch {
	case !there || !defaults:
		why.Text = fmt.Sprintf("column id of table %s has no default from sequence %s", t.Events, t.Sequence)
		why.Fix = fmt.Sprintf("ALTER TABLE %s ALTER id SET DEFAULT nextval('%s')", t.Events, t.Sequence)
	case !grows:
		why.Text = fmt.Sprintf("sequence %s counts down", t.Sequence)
		why.Fix = fmt.Sprintf("ALTER SEQUENCE %s INCREMENT BY 1 MAXVALUE 9223372036854775807", t.Sequence)
	case cycles:
		why.Text = fmt.Sprintf("sequence %s cycles", t.Sequence)
		why.Fix = fmt.Sprintf("ALTER SEQUENCE %s NO CYCLE", t.Sequence)
	case subscribed > 0:
		why.Text = fmt.Sprintf("a subscription fills table %s with the ids of another server", t.Events)
		why.Fix = "run the relay on the server where events are inserted"
	case beyond:
		why.Text = fmt.Sprintf("table %s has ids far beyond its sequence's last value %d, which it did not generate", t.Events, lastValue)
		why.Fix = fmt.Sprintf("insert without ids, and SELECT setval('%s', max(id)) FROM %s", t.Sequence, t.Events)
	}
	return why, nil
}

// idBeyond reports whether there is an id far beyond lastValue, the sequence's, which it updates. Where a thousand ids are generated
// while it looks, it looks again.
func idBeyond(ctx context.Context, db *pg.DB, t *ledger.Tables, lastValue *int64) (bool, error) {
	for range 3 {
		var (
			found bool
			id    int64
		)
		err := db.RoundTrip(ctx, []pg.Step{
			pg.ReadTx(db.StatementTimeout, pg.PlanByPrimaryKey...),
			{SQL: t.SQL(idBeyondSQL), Args: []string{pg.Int(*lastValue + manualIDMargin)}, Row: func(v [][]byte) error {
				found, id = true, pg.ReadInt8(v[0])
				return nil
			}},
			{SQL: lastValueSQL, Args: []string{t.Sequence}, Row: func(v [][]byte) error {
				*lastValue = pg.ReadInt8(v[0])
				return nil
			}},
		})
		if err != nil || !found {
			return false, err
		}
		if id > *lastValue {
			return true, nil
		}
	}
	return false, nil
}
