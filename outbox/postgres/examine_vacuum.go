package postgres

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/migrate"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// What keeps dead rows away: they are what every walk along the index passes.

const settingsSQL = `
SELECT c.relname, quote_ident(n.nspname) || '.' || quote_ident(c.relname), coalesce(array_to_string(c.reloptions, ','), ''),
       current_setting('autovacuum'), current_setting('track_counts')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (ARRAY[to_regclass($1), to_regclass($2)])
ORDER BY c.oid = to_regclass($2)`

// settings compares what the tables are set to with the schema's.
func (e *examination) settings(ctx context.Context, events catalog.Table) {
	const about = "autovacuum"
	own := e.b.config.Schema
	if own == "" {
		own = events.Schema
	}
	want, err := migrate.StorageParameters()
	if e.failed(about, err) {
		return
	}
	server, count, good := "on", "on", true
	answered := e.ask(ctx, about, settingsSQL, func(v []string) {
		server, count = v[3], v[4]
		wanted := want["outbox_batches"]
		if v[0] == events.Name {
			wanted = want["outbox_events"]
			if e.b.config.Own.Is() { // it is the user's to set
				wanted = nil
			}
			if e.b.ClaimMode() == buffer.ClaimRange { // which stamps nothing
				wanted = slices.DeleteFunc(wanted, func(w [2]string) bool { return w[0] == "fillfactor" })
			}
		}
		if now, set := unlike(v[2], wanted); set != "" {
			good = false
			e.warn(about, fmt.Sprintf("table %s is not set as the relay's schema has it (%s), and keeps more dead rows than it need", v[1], now),
				"ALTER TABLE "+v[1]+" SET ("+set+")")
		}
	}, events.Quoted, pg.Ident(own, "outbox_batches"))
	switch {
	case !answered:
	case server == "off" || count == "off":
		e.warn(about, fmt.Sprintf("nothing takes dead rows away (autovacuum %s, track_counts %s), and claims get slower and slower", server, count),
			"ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET track_counts = on; SELECT pg_reload_conf()")
	case good:
		e.fine(about, "it is on, and the tables are set as the relay's schema has them")
	}
}

// unlike compares a table's options, "name=value,...", with what they should be: what
// they are now, and the list that sets them. Both are "" when nothing is amiss.
func unlike(options string, wanted [][2]string) (now, set string) {
	has := map[string]string{}
	for option := range strings.SplitSeq(options, ",") {
		name, value, _ := strings.Cut(option, "=")
		has[name] = value
	}
	var is, be []string
	add := func(name, value, want string) {
		if value == "" {
			value = "unset"
		}
		is, be = append(is, name+" is "+value), append(be, name+" = "+want)
	}
	if v := has["autovacuum_enabled"]; v == "false" || v == "off" {
		add("autovacuum_enabled", v, "true")
	}
	for _, w := range wanted {
		if has[w[0]] != w[1] {
			add(w[0], has[w[0]], w[1])
		}
	}
	return strings.Join(is, ", "), strings.Join(be, ", ")
}

// deadlocks looks at the time the relay has to give way in.
func (e *examination) deadlocks(events catalog.Table) {
	const (
		about    = "deadlock_timeout"
		shortest = 100 * time.Millisecond
	)
	if d := events.DeadlockTimeout; d < shortest {
		e.warn(about, fmt.Sprintf("it is %v; the relay gives way to the application within half of that, and so gives up locks that it had only to wait for", d),
			"ALTER DATABASE "+pg.Quote(events.Database)+" SET deadlock_timeout = '1s'")
		return
	}
	e.fine(about, events.DeadlockTimeout.String())
}

const deadRowsSQL = `
SELECT n_live_tup::text, n_dead_tup::text, coalesce(greatest(last_vacuum, last_autovacuum)::text, 'never')
FROM pg_stat_user_tables WHERE relid = $1::regclass`

// deadRows are notable when they are many, and more than vacuum was told to leave.
func (e *examination) deadRows(ctx context.Context, events catalog.Table) {
	const (
		about   = "dead rows"
		notable = 100_000
	)
	e.ask(ctx, about, deadRowsSQL, func(v []string) {
		live, errLive := strconv.ParseInt(v[0], 10, 64)
		dead, errDead := strconv.ParseInt(v[1], 10, 64)
		if errLive == nil && errDead == nil && dead > max(notable, live) {
			e.warn(about, fmt.Sprintf("table %s has %d dead rows beside %d live ones; last vacuum: %s", events.Quoted, dead, live, v[2]),
				"VACUUM (ANALYZE) "+events.Quoted)
			return
		}
		e.fine(about, v[1]+" in "+events.Quoted)
	}, events.Quoted)
}
