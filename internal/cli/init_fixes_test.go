package cli

import (
	"path/filepath"
	"strings"
	"testing"
)

// A time without time zone may be local time, and is read as UTC: init says so, as the doctor does.
func TestInit_TimeWithoutZone(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	db.exec(`CREATE TABLE odd_events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "createdAt" timestamp NOT NULL DEFAULT now());
		CREATE TABLE utc_events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, created_at timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'UTC'))`)
	const says = "createdAt has no time zone and is read as UTC"
	initialize := func(table string) result {
		t.Helper()
		r := do(t, nil, "init", "--source", db.url, "--table", table, "--sink", "stdout:", "-o", filepath.Join(t.TempDir(), "relay.yaml"))
		r.want(t, 0, "Wrote ", "")
		return r
	}
	zone := func(name string) {
		db.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = %L', current_database(), '` + name + `'); END $$`)
	}
	zone("UTC")
	if r := initialize("odd_events"); strings.Contains(r.stdout, says) {
		t.Errorf("a warning in a database in UTC:\n%s", r.stdout)
	}
	zone("Asia/Tokyo")
	if r := initialize("utc_events"); strings.Contains(r.stdout, "no time zone") {
		t.Errorf("a warning about a default in UTC:\n%s", r.stdout)
	}
	r := initialize("odd_events")
	r.want(t, 0, says, "")
	r.want(t, 0, "Asia/Tokyo", "")
	const fix = `ALTER TABLE odd_events ALTER COLUMN "createdAt" TYPE timestamptz USING "createdAt" AT TIME ZONE 'Asia/Tokyo';`
	r.want(t, 0, "\n\n    "+fix+"\n", "")
	db.exec(fix)
	if r := initialize("odd_events"); strings.Contains(r.stdout, says) {
		t.Errorf("a warning after the fix:\n%s", r.stdout)
	}
}
