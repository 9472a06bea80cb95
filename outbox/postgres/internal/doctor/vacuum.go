package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/migrate"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

const storageSQL = `
SELECT c.relname, quote_ident(n.nspname) || '.' || quote_ident(c.relname), coalesce(array_to_string(c.reloptions, ','), ''),
       current_setting('autovacuum'), current_setting('track_counts')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (ARRAY[to_regclass($1), to_regclass($2)])
ORDER BY c.oid = to_regclass($2)`

// storage adds whether autovacuum runs, and how storage parameters differ from the schema's.
func (d *diagnosis) storage(ctx context.Context, events catalog.Table) {
	const about = "autovacuum"
	schema, err := migrate.Definitions()
	if d.failed(about, err) {
		return
	}
	autovacuum, counts, same := "on", "on", true
	answered := d.query(ctx, about, storageSQL, func(v []string) {
		autovacuum, counts = v[3], v[4]
		wanted := schema["outbox_batches"].Storage
		if v[0] == events.Name {
			wanted = schema["outbox_events"].Storage
			if d.Custom { // the application decides
				wanted = nil
			}
		}
		if is, set := storageDiff(v[2], wanted); set != "" {
			same = false
			d.warn(about, fmt.Sprintf("storage parameters of table %s differ from the relay's schema (%s); dead rows will accumulate", v[1], is),
				"ALTER TABLE "+v[1]+" SET ("+set+")")
		}
	}, events.Quoted, pg.Ident(d.LedgerSchema, "outbox_batches"))
	switch {
	case !answered:
	case autovacuum == "off" || counts == "off":
		d.warn(about, fmt.Sprintf("nothing removes dead rows (autovacuum %s, track_counts %s); claims become slower and slower", autovacuum, counts),
			"ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET track_counts = on; SELECT pg_reload_conf()")
	case same:
		d.ok(about, "it is on, and the storage parameters are those of the relay's schema")
	}
}

// storageDiff compares a table's options, "name=value,...", with the wanted ones: what they are,
// and the list that sets them. Both are "" if nothing differs.
func storageDiff(options string, wanted [][2]string) (is, set string) {
	has := map[string]string{}
	for option := range strings.SplitSeq(options, ",") {
		name, value, _ := strings.Cut(option, "=")
		has[name] = value
	}
	if v := has["autovacuum_enabled"]; v == "false" || v == "off" {
		wanted = append([][2]string{{"autovacuum_enabled", "true"}}, wanted...)
	}
	var now, then []string
	for _, w := range wanted {
		if value := has[w[0]]; value != w[1] {
			if value == "" {
				value = "unset"
			}
			now, then = append(now, w[0]+" is "+value), append(then, w[0]+" = "+w[1])
		}
	}
	return strings.Join(now, ", "), strings.Join(then, ", ")
}

const deadRowsSQL = `
SELECT n_live_tup::text, n_dead_tup::text, coalesce(greatest(last_vacuum, last_autovacuum)::text, 'never'),
       (n_dead_tup > greatest(n_live_tup, 100000))::text
FROM pg_stat_user_tables WHERE relid = $1::regclass`

// deadRows adds dead rows; many are a warning if there are more of them than live ones.
func (d *diagnosis) deadRows(ctx context.Context, events catalog.Table) {
	const about = "dead rows"
	d.query(ctx, about, deadRowsSQL, func(v []string) {
		if v[3] == "true" {
			d.warn(about, fmt.Sprintf("table %s has %s dead rows and %s live ones; last vacuum: %s", events.Quoted, v[1], v[0], v[2]),
				"VACUUM (ANALYZE) "+events.Quoted)
			return
		}
		d.ok(about, v[1]+" in "+events.Quoted)
	}, events.Quoted)
}
