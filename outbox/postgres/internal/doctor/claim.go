package doctor

import (
	"context"
	"slices"

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
			d.problem(about, "row level security hides rows of table "+events.Quoted+" from role "+v[1]+"; the relay never sends them, and without a policy for DELETE it cannot delete delivered events",
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
FROM outbox_batches
WHERE buffer = $1 AND (state = 'waiting' AND attempts + outages > 0 OR state = 'delivered' AND error IS NOT NULL)`

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
		d.warn(about, "batches that wait for a retry: "+v[0]+", their events: "+v[1]+"; the newest because: "+v[2], "remove the cause; the relay retries by itself")
	}, d.state.Tables.Buffer)
}

const indexesSQL = `
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), i.indisprimary::text, (i.indisvalid AND i.indisready)::text,
       (am.amname = 'btree' AND i.indpred IS NULL AND i.indkey[0] = (
         SELECT attnum FROM pg_attribute WHERE attrelid = i.indrelid AND attname = 'id' AND NOT attisdropped))::text,
       (SELECT attname FROM pg_attribute WHERE attrelid = i.indrelid AND attnum = i.indkey[0])::text,
       coalesce((SELECT quote_ident(conname) FROM pg_constraint WHERE conindid = i.indexrelid AND conrelid = i.indrelid AND contype IN ('p', 'u', 'x') LIMIT 1), '')
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_am am ON am.oid = c.relam
WHERE i.indrelid = $1::regclass
ORDER BY i.indisprimary DESC, i.indisvalid DESC, c.relname`

// indexes adds whether claims have an index, and indexes that are of no use.
func (d *diagnosis) indexes(ctx context.Context, events catalog.Table) {
	const (
		about   = "indexes"
		useless = "; each insert writes to it, and each claim by stamp"
	)
	var claims string
	primary, delays, extra := false, false, 0
	answered := d.query(ctx, about, indexesSQL, func(v []string) {
		name, isPrimary, valid, byID, first, constraint := v[0], v[1] == "true", v[2] == "true", v[3] == "true", v[4], v[5]
		primary = primary || isPrimary
		switch {
		case byID && claims == "":
			claims = name
			if !valid {
				d.problem(about, "index "+name+" is invalid; claims cannot use it", "REINDEX INDEX "+name)
			}
		case isPrimary: // not on id: the application needs it
		case first == "available_at" && !delays: // Check needs one
			delays = true
		case constraint != "":
			extra++
			d.warn(about, "the index of constraint "+constraint+" is of no use to the relay"+useless, "ALTER TABLE "+events.Quoted+" DROP CONSTRAINT "+constraint)
		default:
			extra++
			d.warn(about, "index "+name+" is of no use to the relay"+useless, "DROP INDEX "+name)
		}
	}, events.Quoted)
	switch {
	case !answered:
	case claims == "" && primary:
		d.problem(about, "table "+events.Quoted+" has no index that begins with id; each claim reads all of it", "CREATE UNIQUE INDEX ON "+events.Quoted+" (id)")
	case claims == "":
		d.problem(about, "table "+events.Quoted+" has no primary key; each claim reads all of it", "ALTER TABLE "+events.Quoted+" ADD PRIMARY KEY (id)")
	case extra == 0:
		d.ok(about, claims+" is the only index of the buffer beside that of delayed events")
	}
}

const farDelayedSQL = `
SELECT count(*)::text, min(available_at)::text FROM (
  SELECT available_at FROM outbox_events WHERE available_at > statement_timestamp() + interval '10 years' ORDER BY available_at LIMIT 1000) far`

// delayed adds whether events wait for a time that is nearly always one in the wrong unit.
func (d *diagnosis) delayed(ctx context.Context) {
	const about = "delayed events"
	if d.state == nil || d.Custom {
		return
	}
	d.query(ctx, about, d.state.Tables.SQL(farDelayedSQL), func(v []string) {
		if v[0] != "0" {
			d.warn(about, "events with an available_at more than 10 years from now: "+v[0]+", the first at "+v[1]+"; they wait until then",
				"UPDATE "+d.state.Tables.Events+" SET available_at = clock_timestamp() WHERE available_at > now() + interval '10 years'")
		}
	})
}

// claimPlan adds whether a claim, under its settings, uses the primary key.
func (d *diagnosis) claimPlan(ctx context.Context, events catalog.Table) {
	const about = "claim plan"
	if d.state == nil || d.state.Custom != nil && !d.state.Custom.Numbered() { // see uuidKey
		return
	}
	scans, ok := d.claimScans(ctx, about, events)
	if !ok {
		return
	}
	for _, scan := range scans {
		if scan.Index == "" || scan.Type == "Bitmap Heap Scan" {
			d.problem(about, "a claim reads table "+events.Quoted+" by a "+scan.Type+", not by its primary key",
				"ANALYZE "+events.Quoted+" (and see the findings about indexes)")
			return
		}
	}
	if len(scans) > 0 {
		d.ok(about, "a claim uses index "+scans[0].Index)
	}
}

// claimScans returns how a claim, under its settings, would read a table; false if that cannot be found out, which it adds.
func (d *diagnosis) claimScans(ctx context.Context, about string, events catalog.Table) ([]pg.Plan, bool) {
	var result []byte
	err := d.DB.Transact(ctx, pg.ReadTx(d.DB.StatementTimeout, pg.PlanByPrimaryKey...), pg.Step{
		SQL: "EXPLAIN (FORMAT JSON) " + d.state.ClaimSQL, Args: d.state.ClaimArgs,
		Row: func(v [][]byte) error { result = slices.Clone(v[0]); return nil },
	})
	if d.failed(about, err) {
		return nil, false
	}
	plan, err := pg.ParsePlan(result)
	if d.failed(about, err) {
		return nil, false
	}
	return plan.Scans(events.Name), true
}
