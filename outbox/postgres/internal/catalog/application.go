package catalog

import (
	"context"
	"strings"

	"github.com/outboxrelay/relay/outbox/internal/notready"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Tables whose buffers the pipeline owns.
const ownedSQL = `
SELECT c.oid::int8, quote_ident(n.nspname) || '.' || quote_ident(c.relname)
FROM outbox_buffers b JOIN pg_namespace n ON starts_with(b.buffer, n.nspname || '.') JOIN pg_class c ON c.relnamespace = n.oid AND b.buffer = n.nspname || '.' || c.relname
WHERE b.pipeline = $1 AND c.relkind IN ('r', 'p')
ORDER BY b.owned_since DESC LIMIT 100`

// Reading a table may run functions of its owner (row security, rules).
const plainSQL = `
SELECT relkind IN ('r', 'p') AND NOT relrowsecurity AND NOT relhasrules FROM pg_class WHERE oid = $1`

// Application returns what tells the relay's own table, which lacks columns, from one of the application. buffers is outbox_buffers.
func Application(ctx context.Context, db *pg.DB, events, buffers Table, lacks []string, pipeline string) (notready.Table, error) {
	t := notready.Table{Quoted: events.Quoted, Name: events.Name, Columns: events.Columns, Lacks: lacks, Rows: notready.Unread, Pipeline: pipeline}
	if buffers.Exists && buffers.CanSelect && buffers.Has("pipeline") && buffers.Has("owned_since") {
		err := db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {
			SQL: strings.ReplaceAll(ownedSQL, "outbox_buffers", buffers.Quoted), Args: []string{db.Text(pipeline)},
			Row: func(v [][]byte) error {
				if pg.ReadInt8(v[0]) == events.ID {
					t.Owned = true
				} else if t.Also == "" {
					t.Also = string(v[1])
				}
				return nil
			},
		}})
		if err != nil {
			return t, err
		}
	}
	plain := false
	err := db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {
		SQL: plainSQL, Args: []string{pg.Int(events.ID)}, Row: func(v [][]byte) error { plain = pg.ReadBool(v[0]); return nil },
	}})
	if err != nil || !plain || !events.CanSelect {
		return t, err
	}
	return t, db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {
		SQL: "SELECT count(*) FROM (SELECT FROM " + events.Quoted + " LIMIT " + pg.Int(notready.MaxRows+1) + ") r",
		Row: func(v [][]byte) error { t.Rows = pg.ReadInt8(v[0]); return nil },
	}})
}
