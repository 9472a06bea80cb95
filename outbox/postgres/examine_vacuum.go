package postgres

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// What keeps dead rows away: they are what every walk along the index passes.

const settingsSQL = `
SELECT c.relname, quote_ident(n.nspname) || '.' || quote_ident(c.relname), coalesce(array_to_string(c.reloptions, ','), ''),
       current_setting('autovacuum'), current_setting('track_counts')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (ARRAY[to_regclass($1), to_regclass($2)])
ORDER BY c.oid = to_regclass($2)`

// settings compares what the tables are set to with the schema's.
func (e *examination) settings(ctx context.Context, events tableFacts) {
	const about = "autovacuum"
	own := e.b.config.Schema
	if own == "" {
		own = events.schema
	}
	want, err := storage()
	if e.failed(about, err) {
		return
	}
	server, count, good := "on", "on", true
	answered := e.ask(ctx, about, settingsSQL, func(v []string) {
		server, count = v[3], v[4]
		wanted := want["outbox_batches"]
		if v[0] == events.name {
			wanted = want["outbox_events"]
		}
		if now, set := unlike(v[2], wanted); set != "" {
			good = false
			e.warn(about, fmt.Sprintf("table %s is not set as the relay's schema has it (%s), and keeps more dead rows than it need", v[1], now),
				"ALTER TABLE "+v[1]+" SET ("+set+")")
		}
	}, events.quoted, ident(own, "outbox_batches"))
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

var tableDDL = regexp.MustCompile(`(?s)CREATE TABLE IF NOT EXISTS (outbox_\w+) \((?:.*?)\n\)(?: WITH \((.*?)\n\))?;`)

// storage is how the schema sets its tables: name and value, by table.
func storage() (map[string][][2]string, error) {
	ddl, err := Schema(SchemaConfig{})
	if err != nil {
		return nil, err
	}
	all := map[string][][2]string{}
	for _, table := range tableDDL.FindAllStringSubmatch(ddl, -1) {
		for option := range strings.SplitSeq(table[2], ",") {
			if name, value, ok := strings.Cut(strings.TrimSpace(option), " = "); ok {
				all[table[1]] = append(all[table[1]], [2]string{name, value})
			}
		}
	}
	return all, nil
}

// deadlocks looks at the time the relay has to give way in.
func (e *examination) deadlocks(events tableFacts) {
	const (
		about    = "deadlock_timeout"
		shortest = 100 * time.Millisecond
	)
	if d := events.deadlockTimeout; d < shortest {
		e.warn(about, fmt.Sprintf("it is %v; the relay gives way to the application within half of that, and so gives up locks that it had only to wait for", d),
			"ALTER DATABASE "+quote(events.database)+" SET deadlock_timeout = '1s'")
		return
	}
	e.fine(about, events.deadlockTimeout.String())
}

const deadRowsSQL = `
SELECT n_live_tup::text, n_dead_tup::text, coalesce(greatest(last_vacuum, last_autovacuum)::text, 'never')
FROM pg_stat_user_tables WHERE relid = $1::regclass`

// deadRows are notable when they are many, and more than vacuum was told to leave.
func (e *examination) deadRows(ctx context.Context, events tableFacts) {
	const (
		about   = "dead rows"
		notable = 100_000
	)
	e.ask(ctx, about, deadRowsSQL, func(v []string) {
		live, errLive := strconv.ParseInt(v[0], 10, 64)
		dead, errDead := strconv.ParseInt(v[1], 10, 64)
		if errLive == nil && errDead == nil && dead > max(notable, live) {
			e.warn(about, fmt.Sprintf("table %s has %d dead rows beside %d live ones; last vacuum: %s", events.quoted, dead, live, v[2]),
				"VACUUM (ANALYZE) "+events.quoted)
			return
		}
		e.fine(about, v[1]+" in "+events.quoted)
	}, events.quoted)
}

const mayReadStatsSQL = `
SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')::text, quote_ident(current_user)`

// sessions tells whether this role sees what others do.
func (e *examination) sessions(ctx context.Context, _ tableFacts) {
	const about = "sessions"
	e.ask(ctx, about, mayReadStatsSQL, func(v []string) {
		if v[0] != "true" {
			e.warn(about, "role "+v[1]+" does not see what other roles' sessions do, so long transactions of theirs go unseen here and in relay_source_oldest_transaction_seconds",
				"GRANT pg_read_all_stats TO "+v[1])
			return
		}
		e.fine(about, "role "+v[1]+" sees those of all roles")
	})
}

// A transaction with a snapshot holds vacuum back in its own database, one that wrote
// in every one: each new snapshot reaches back to it.
const longTransactionsSQL = `
SELECT pid::text, coalesce(usename, backend_type), application_name, coalesce(datname, '-'), coalesce(state, '-'),
       date_trunc('second', clock_timestamp() - xact_start)::text
FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND xact_start < clock_timestamp() - $1::interval
  AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL AND (datname = current_database() OR datname IS NULL))
ORDER BY xact_start LIMIT 10`

const preparedSQL = `
SELECT quote_literal(gid), owner, database, date_trunc('second', clock_timestamp() - prepared)::text
FROM pg_prepared_xacts WHERE prepared < clock_timestamp() - $1::interval
ORDER BY prepared LIMIT 10`

const slotsSQL = `
SELECT quote_literal(slot_name), slot_type, age(coalesce(xmin, catalog_xmin))::text
FROM pg_replication_slots WHERE NOT active AND coalesce(xmin, catalog_xmin) IS NOT NULL
ORDER BY 3 LIMIT 10`

// holders are transactions older than long, and slots, that keep dead rows from
// being taken away.
func (e *examination) holders(ctx context.Context, long time.Duration) {
	const about = "vacuum horizon"
	before := len(e.found)
	e.ask(ctx, about, longTransactionsSQL, func(v []string) {
		e.warn(about, fmt.Sprintf("a transaction is open for %s (pid %s, role %s, application %q, database %s, %s), and no dead row younger than it goes away",
			v[5], v[0], v[1], v[2], v[3], v[4]), "SELECT pg_terminate_backend("+v[0]+")")
	}, interval(long))
	e.ask(ctx, about, preparedSQL, func(v []string) {
		e.warn(about, fmt.Sprintf("the transaction prepared as %s (role %s, database %s) is open for %s, and no dead row younger than it goes away", v[0], v[1], v[2], v[3]),
			"ROLLBACK PREPARED "+v[0])
	}, interval(long))
	e.ask(ctx, about, slotsSQL, func(v []string) {
		e.warn(about, fmt.Sprintf("nobody reads the %s replication slot %s, and it keeps dead rows of the last %s transactions, and WAL until the disk is full", v[1], v[0], v[2]),
			"SELECT pg_drop_replication_slot("+v[0]+")")
	})
	if len(e.found) == before {
		e.fine(about, "nothing older than "+long.String()+" holds it back")
	}
}
