package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Range claims live on ids that grow: a cursor passes each once, and what commits late
// is found between floor and cursor. Where ids come from anywhere else all would still
// be sent, but by looking at everything again and again; stamps are no worse there.

// Ids that were given by hand, now and then, do no harm; more of them, or an
// import that left its sequence behind, are somebody else's numbering. Nothing else is
// asked of the events: to look for the highest id could mean to walk over all the dead
// rows at that end.
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

	idsBeyondSQL = `
SELECT FROM outbox_events WHERE id > $1::bigint ORDER BY id LIMIT 1`

	subscribedSQL = `
SELECT FROM pg_subscription_rel WHERE srrelid = $1::regclass LIMIT 1`
)

// rangeIneligible returns why range claims do not suit the buffer, and how to change that; "" if they do.
func (b *Buffer) rangeIneligible(ctx context.Context, t *table) (string, error) {
	var (
		there, grows, cycles, defaults, readable bool
		lastValue, beyond, subscribed            int64
	)
	err := b.db.RoundTrip(ctx, []pg.Step{pg.ReadTx(b.db.StatementTimeout), {SQL: idsSQL, Args: []string{t.Sequence, t.Events}, Row: func(v [][]byte) error {
		there, grows, cycles, defaults = true, pg.ReadBool(v[0]), pg.ReadBool(v[1]), pg.ReadBool(v[2])
		lastValue, readable = pg.ReadInt8(v[3]), pg.ReadBool(v[4])
		return nil
	}}})
	if err != nil {
		return "", err
	}
	steps := []pg.Step{
		pg.ReadTx(b.db.StatementTimeout, pg.PlanByPrimaryKey...),
		{SQL: t.SQL(idsBeyondSQL), Args: []string{pg.Int(lastValue + manualIDMargin)}, Affected: &beyond},
	}
	if readable {
		steps = append(steps, pg.Step{SQL: subscribedSQL, Args: []string{t.Events}, Affected: &subscribed})
	}
	if err := b.db.Transact(ctx, steps...); err != nil {
		return "", err
	}
	switch {
	case !there || !defaults:
		return fmt.Sprintf("column id of table %s does not take its ids from sequence %s by itself: ALTER TABLE %s ALTER id SET DEFAULT nextval('%s')",
			t.Events, t.Sequence, t.Events, t.Sequence), nil
	case !grows:
		return fmt.Sprintf("sequence %s counts down: ALTER SEQUENCE %s INCREMENT BY 1 MAXVALUE 9223372036854775807", t.Sequence, t.Sequence), nil
	case cycles:
		return fmt.Sprintf("sequence %s begins again at its end: ALTER SEQUENCE %s NO CYCLE", t.Sequence, t.Sequence), nil
	case subscribed > 0:
		return fmt.Sprintf("table %s is filled by a subscription, with the ids of another server: run the relay where they are inserted", t.Events), nil
	case beyond > 0:
		return fmt.Sprintf("table %s has ids far beyond its sequence's last value %d, which somebody else has given: leave them to sequence %s, and SELECT setval('%s', max(id)) FROM %s",
			t.Events, lastValue, t.Sequence, t.Sequence, t.Events), nil
	}
	return "", nil
}

// Warnings tells what was asked for in the configuration and is not done, one sentence
// each, with what is done instead and what mends it. It is for people: nothing is
// decided by it.
func (b *Buffer) Warnings(context.Context) []string {
	t := b.table.Load()
	if t == nil || t.rangeIneligible == "" || b.config.Claim != buffer.ClaimRange || b.config.Ordered {
		return nil
	}
	return []string{"claim: range needs ids that only grow; events are claimed by stamp, because " + t.rangeIneligible}
}

// A TRUNCATE trigger is the only one with this bit.
const truncateSQL = `
SELECT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
               WHERE t.tgrelid = $1::regclass AND t.tgtype & 32 <> 0 AND t.tgenabled IN ('O', 'A')
                 AND p.proname = 'outbox_truncated')::text`

// claims says in which mode this relay claims, and why not in a better one.
func (e *examination) claims(ctx context.Context, events catalog.Table) {
	const about = "claim"
	t := e.b.table.Load()
	if t == nil { // what is missing was said
		return
	}
	mode := e.b.ClaimMode()
	switch {
	case t.rangeIneligible == "" || e.b.config.Ordered:
		e.fine(about, "by "+string(mode))
	case e.b.config.Claim == buffer.ClaimRange:
		why, mend := parted(t.rangeIneligible)
		e.warn(about, "by "+string(mode)+", although claim: range was asked for: "+why, mend)
	default:
		why, mend := parted(t.rangeIneligible)
		e.add(buffer.LevelOK, about, "by "+string(mode)+"; not by range, for "+why, mend)
	}
	if mode != buffer.ClaimRange {
		return
	}
	e.ask(ctx, about, truncateSQL, func(v []string) {
		if v[0] != "true" {
			own := e.b.config.Schema
			if own == "" {
				own = events.Schema
			}
			e.warn(about, "nothing takes the batches of table "+events.Quoted+" away when it is truncated, and after RESTART IDENTITY other events would have their ids",
				"CREATE TRIGGER outbox_truncated AFTER TRUNCATE ON "+events.Quoted+" FOR EACH STATEMENT EXECUTE FUNCTION "+
					pg.Ident(own, "outbox_truncated")+"("+pg.Literal(own)+")")
		}
	}, events.Quoted)
}

// parted parts a sentence from the statement at its end.
func parted(text string) (why, mend string) {
	why, mend, _ = strings.Cut(text, ": ")
	return why, mend
}
