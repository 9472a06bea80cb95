package custom

import (
	"context"
	"regexp"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Zone is a time zone as PostgreSQL names it.
type Zone string

// UTC is that zone, whatever its name.
const UTC Zone = "UTC"

// The zone is that of a session that sets none. It may be that of UTC for half of the year.
const zoneSQL = `
SELECT z.name,
       (SELECT bool_or(t AT TIME ZONE z.name <> t AT TIME ZONE 'UTC') FROM unnest(ARRAY[timestamptz '2026-01-01', timestamptz '2026-07-01']) t),
       coalesce((SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
                 WHERE d.adrelid = $1::regclass AND a.attname = $2), '')
FROM (SELECT reset_val AS name FROM pg_settings WHERE name = 'TimeZone') z`

// inUTC matches a default value that does not depend on the session's time zone.
var inUTC = regexp.MustCompile(`(?i)(at time zone|timezone\() ?'utc'`)

// ZoneOf returns the zone in which a column without time zone is probably written: the database's, unless its default says UTC.
func ZoneOf(ctx context.Context, db *pg.DB, table, column string) (zone Zone, err error) {
	zone = UTC
	err = db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {SQL: zoneSQL, Args: []string{table, column}, Row: func(v [][]byte) error {
		if pg.ReadBool(v[1]) && !inUTC.Match(v[2]) {
			zone = Zone(v[0])
		}
		return nil
	}}})
	return zone, err
}

// Alter returns the statement that gives a column without time zone its zone. If the zone is not sure, a comment says so.
func (z Zone) Alter(table, column string) string {
	s := "ALTER TABLE " + table + " ALTER COLUMN " + column + " TYPE timestamptz USING " + column + " AT TIME ZONE " + pg.Literal(string(z))
	if z != UTC {
		s += " -- or 'UTC', if they hold UTC"
	}
	return s
}
