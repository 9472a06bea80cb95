package doctor

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

const rowSecuritySQL = `
SELECT row_security_active($1)::text, quote_ident(current_user)`

// rowSecurity adds whether a policy hides events from the relay, which would never send them.
func (d *diagnosis) rowSecurity(ctx context.Context, events catalog.Table) {
	const about = "row security"
	d.query(ctx, about, rowSecuritySQL, func(v []string) {
		if v[0] == "true" {
			d.problem(about, "row level security hides rows of table "+events.Quoted+" from role "+v[1]+"; the relay never sends them",
				"ALTER ROLE "+v[1]+" BYPASSRLS")
		}
	}, events.Quoted)
}

// Bit 32 of tgtype is TRUNCATE.
const truncateTriggerSQL = `
SELECT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
               WHERE t.tgrelid = $1::regclass AND t.tgtype & 32 <> 0 AND t.tgenabled IN ('O', 'A')
                 AND p.proname = 'outbox_truncated')::text`

// claim adds the mode in which this relay claims, and why it is not a better one.
func (d *diagnosis) claim(ctx context.Context, events catalog.Table) {
	const about = "claim"
	if d.state == nil {
		return
	}
	by, why := "by "+string(d.state.Mode), d.state.NotRange
	switch {
	case why == nil:
		d.ok(about, by)
	case d.state.RangeRequested:
		d.warn(about, by+", although claim is range: "+why.Text, why.Fix)
	default:
		d.add(buffer.LevelOK, about, by+"; not by range, because "+why.Text, why.Fix)
	}
	if d.state.Mode != buffer.ClaimRange {
		return
	}
	d.query(ctx, about, truncateTriggerSQL, func(v []string) {
		if v[0] != "true" {
			d.warn(about, "TRUNCATE of table "+events.Quoted+" leaves its batches; after RESTART IDENTITY other events would have their ids",
				"CREATE TRIGGER outbox_truncated AFTER TRUNCATE ON "+events.Quoted+" FOR EACH STATEMENT EXECUTE FUNCTION "+
					pg.Ident(d.LedgerSchema, "outbox_truncated")+"("+pg.Literal(d.LedgerSchema)+")")
		}
	}, events.Quoted)
}

const whyWaitingSQL = `
SELECT count(*)::text, coalesce(sum(events), 0)::text, coalesce((array_agg(error ORDER BY claimed_at DESC))[1], '')
FROM outbox_batches WHERE buffer = $1 AND state = 'waiting' AND attempts + outages > 0`

// waiting adds why batches wait.
func (d *diagnosis) waiting(ctx context.Context) {
	const about = "batches"
	if d.state == nil {
		return
	}
	d.query(ctx, about, d.state.Tables.SQL(whyWaitingSQL), func(v []string) {
		if v[0] == "0" {
			d.ok(about, "none waits for a retry")
			return
		}
		d.warn(about, v[0]+" batches with "+v[1]+" events wait for a retry; the newest because: "+v[2], "remove the cause; the relay retries by itself")
	}, d.state.Tables.Buffer)
}
