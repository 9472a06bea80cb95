package catalog

import (
	"context"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/notready"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The buffer of a pipeline whose table has gone: the table with its oid, which numbering begins with, and those of the schema with the first columns of the relay's own
// table that are no archives and that no pipeline owns. A restore gives tables other oids, so the first has to be like a buffer, too.
const lostSQL = `
WITH lost AS (
  SELECT left(buffer, -length($3) - 1) AS schema, CASE WHEN numbering ~ '^[0-9]+/' THEN split_part(numbering, '/', 1)::bigint END AS id
  FROM outbox_buffers
  WHERE pipeline = $1 AND right(buffer, length($3) + 1) = '.' || $3 AND ($2 = '' OR buffer = $2 || '.' || $3)
  ORDER BY owned_since DESC LIMIT 1
)
SELECT l.schema, coalesce(c.nspname, ''), coalesce(c.relname, ''), coalesce(c.id = l.id, false), coalesce(c.columns, '{}')
FROM lost l LEFT JOIN (
  SELECT n.nspname::text, c.relname::text, c.oid::bigint AS id,
         ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
) c ON c.id = l.id OR c.nspname = l.schema AND c.columns @> $4::text[] AND NOT 'archived_at' = ANY (c.columns)
  AND NOT EXISTS (SELECT FROM outbox_buffers b WHERE b.buffer = c.nspname || '.' || c.relname AND b.pipeline IS NOT NULL)
ORDER BY 3 LIMIT 100`

// Lost returns the table of a name that no table has, if the pipeline owned it; nil if it did not. buffers is outbox_buffers; schema is "" for any. custom: its columns are
// those of the application.
func Lost(ctx context.Context, db *pg.DB, buffers Table, pipeline, schema, name string, custom bool) (*notready.Lost, error) {
	if !buffers.Exists || !buffers.CanSelect || !buffers.Has("owned_since") || !buffers.Has("numbering") {
		return nil, nil
	}
	var (
		lost *notready.Lost
		like []notready.Found
		own  = array(buffer.FirstEventColumns())
	)
	names := map[notready.Found]string{}
	err := db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {
		SQL: strings.ReplaceAll(lostSQL, "outbox_buffers", buffers.Quoted), Args: []string{db.Text(pipeline), schema, name, own},
		Row: func(v [][]byte) error {
			was, in, called, same := string(v[0]), string(v[1]), string(v[2]), pg.ReadBool(v[3])
			var columns []string
			pg.ReadArray(v[4], func(c []byte) { columns = append(columns, string(c)) })
			if lost == nil {
				lost = &notready.Lost{Table: pg.Ident(was, name), Pipeline: pipeline}
			}
			if called == "" || !custom && buffer.LacksEventColumns(columns) != nil || custom && !slices.Contains(columns, "group_id") {
				return nil
			}
			f := notready.Found{Quoted: pg.Ident(in, called), Source: in + "." + called, Back: "ALTER TABLE " + pg.Ident(in, called) + " RENAME TO " + pg.Quote(name)}
			if called == name { // it is in another schema now
				f.Back = "ALTER TABLE " + pg.Ident(in, called) + " SET SCHEMA " + pg.Quote(was)
			}
			names[f] = called
			if same {
				lost.Renamed, lost.Now = true, f
			} else {
				like = append(like, f)
			}
			return nil
		},
	}})
	if lost != nil && !lost.Renamed && !custom {
		lost.Now = notready.Likest(name, like, func(f notready.Found) string { return names[f] })
	}
	return lost, err
}
