package cli

import (
	"path/filepath"
	"strings"
	"testing"
)

// A table that cannot hold events gets a way out: after the statement that init prints, it can.
func TestInit_WaysOut(t *testing.T) {
	t.Parallel()
	const ownTable = " and run init again, or use the relay's own table (--table outbox_events)"
	for name, try := range map[string]struct {
		sqlite    bool
		sql, says string
	}{
		"no key": {
			false, "CREATE TABLE odd_events (what text)",
			"it has no primary key; expected an integer or a uuid; add a key" + ownTable +
				" > ALTER TABLE odd_events ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY\n",
		},
		"no key, an id": {
			false, `CREATE TABLE odd_events ("what?" text, id int NOT NULL)`,
			"; if id alone identifies a row, make it the key" + ownTable + " > ALTER TABLE odd_events ADD PRIMARY KEY (id)\n",
		},
		"no key, an id that is text": {
			false, "CREATE TABLE odd_events (id text)",
			"; add a key" + ownTable + " > ALTER TABLE odd_events ADD COLUMN event_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY\n",
		},
		"a key that is text": {
			false, "CREATE TABLE odd_events (id text PRIMARY KEY DEFAULT random())",
			"its primary key id is text; expected an integer or a uuid; add a column that identifies a row" + ownTable +
				" > ALTER TABLE odd_events ADD COLUMN event_id bigint GENERATED ALWAYS AS IDENTITY UNIQUE\n",
		},
		"a group_id of its own": {
			false, "CREATE TABLE odd_events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, group_id bigint)",
			"its column group_id is bigint; expected uuid; if your application can call its column differently, rename it" + ownTable +
				" > ALTER TABLE odd_events RENAME COLUMN group_id TO app_group_id\n",
		},
		"both": {
			false, "CREATE TABLE odd_events (group_id text, app_group_id int)",
			"; add a key" + ownTable + " > ALTER TABLE odd_events ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY\n",
		},
		"partitions": {
			false, "CREATE TABLE odd_events (day date) PARTITION BY RANGE (day)",
			"; use the relay's own table (--table outbox_events)\n",
		},
		"SQLite, no key": {
			true, "CREATE TABLE odd_events (what text)",
			"; recreate it with a column id INTEGER PRIMARY KEY AUTOINCREMENT" + ownTable + "\n",
		},
		"SQLite, a group_id of its own": {
			true, "CREATE TABLE odd_events (id INTEGER PRIMARY KEY AUTOINCREMENT, group_id INTEGER)",
			"; if your application can call its column differently, rename it" + ownTable + " > ALTER TABLE odd_events RENAME COLUMN group_id TO app_group_id\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, try.sqlite)
			db.exec(try.sql)
			path := filepath.Join(t.TempDir(), "relay.yaml")
			args := []string{"init", "--source", db.url, "--table", "odd_events", "--sink", "stdout:", "-o", path}
			r := do(t, nil, args...)
			r.want(t, 2, "", try.says)
			for range 2 { // "both" takes two statements
				if _, fix, found := strings.Cut(r.stderr, " > "); found {
					db.exec(fix)
					r = do(t, nil, args...)
				}
			}
			if !strings.Contains(try.says, " > ") {
				return
			}
			r.want(t, 0, "Wrote ", "")
			for _, step := range steps(r.stdout) {
				db.exec(step)
			}
			do(t, db.env, "migrate", "-c", path).want(t, 0, "applied", "")
			db.exec("INSERT INTO odd_events " + map[bool]string{true: "(id) VALUES (7)", false: "DEFAULT VALUES"}[strings.Contains(try.sql, "id int NOT NULL")])
			do(t, db.env, "preview", "-c", path).want(t, 0, "1 event read", "")
			do(t, db.env, "doctor", "-c", path).want(t, 0, "\n0 problems, ", "")
		})
	}
}

// init says how a table gets ages.
func TestInit_NoAges(t *testing.T) {
	t.Parallel()
	for sqlite, c := range map[bool]struct{ key, says string }{
		false: {"id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "ALTER TABLE odd_events ADD COLUMN created_at timestamptz; ALTER TABLE odd_events ALTER created_at SET DEFAULT now()"},
		true:  {"id INTEGER PRIMARY KEY AUTOINCREMENT", "recreate the table with created_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ'))"},
	} {
		db := newAppDatabase(t, sqlite)
		db.exec("CREATE TABLE odd_events (" + c.key + ", what text)")
		r := do(t, nil, "init", "--source", db.url, "--table", "odd_events", "--sink", "stdout:", "-o", filepath.Join(t.TempDir(), "relay.yaml"))
		if text := strings.Join(strings.Fields(r.stdout), " "); r.code != 0 || !strings.Contains(text, "otherwise: "+c.says) {
			t.Errorf("exit status %d, init prints\n%s%s", r.code, r.stdout, r.stderr)
		}
	}
}

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
