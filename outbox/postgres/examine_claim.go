package postgres

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

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
	case t.RangeIneligible.Text == "" || e.b.config.Ordered:
		e.fine(about, "by "+string(mode))
	case e.b.config.Claim == buffer.ClaimRange:
		e.warn(about, "by "+string(mode)+", although claim: range was asked for: "+t.RangeIneligible.Text, t.RangeIneligible.Fix)
	default:
		e.add(buffer.LevelOK, about, "by "+string(mode)+"; not by range, because "+t.RangeIneligible.Text, t.RangeIneligible.Fix)
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
