package postgres

import (
	"context"

	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
)

const rowSecuritySQL = `SELECT row_security_active($1)::text, quote_ident(current_user)`

// rowSecurity: rows that a policy hides are never sent, and nothing else says so.
func (e *examination) rowSecurity(ctx context.Context, events catalog.Table) {
	e.ask(ctx, "row security", rowSecuritySQL, func(v []string) {
		if v[0] == "true" {
			e.problem("row security", "row level security hides rows of table "+events.Quoted+" from role "+v[1]+", and what it hides is never sent",
				"ALTER ROLE "+v[1]+" BYPASSRLS")
		}
	}, events.Quoted)
}

const whyWaitingSQL = `
SELECT count(*)::text, coalesce(sum(events), 0)::text, coalesce((array_agg(error ORDER BY claimed_at DESC))[1], '')
FROM outbox_batches WHERE buffer = $1 AND state = 'waiting' AND attempts + outages > 0`

// waiting says why batches wait.
func (e *examination) waiting(ctx context.Context) {
	const about = "batches"
	t := e.b.table.Load()
	if t == nil { // the tables are not there
		return
	}
	e.ask(ctx, about, t.SQL(whyWaitingSQL), func(v []string) {
		if v[0] == "0" {
			e.fine(about, "none waits because it was not taken")
			return
		}
		e.warn(about, v[0]+" wait with "+v[1]+" events; the newest because: "+v[2],
			"mend what the reason names; they are sent again by themselves")
	}, t.Buffer)
}
