package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What init guesses of columns that say what became of a row: it proposes a mark in a table of events, and otherwise warns.
func TestInit_Marks(t *testing.T) {
	t.Parallel()
	const (
		loop   = " looks like the mark of a loop that sends."
		guess  = "That is guessed from the name "
		ended  = " look as if they had been given up or withdrawn. They are events, too, and are sent."
		writes = "\n      done: mark\n"
	)
	for name, c := range map[string]struct {
		sqlite        bool
		table, column string
		marks         string // where of the proposal; "" if there is none
		says          []string
		not           string
	}{
		".NET": {
			false, `"OutboxMessages"`, `"Type" text, "Content" text, "OccurredOnUtc" timestamptz, "ProcessedOnUtc" timestamptz`, `'"ProcessedOnUtc" IS NULL'`,
			[]string{guess + "ProcessedOnUtc. If it says something else, remove where, done and mark"},
			"ProcessedOnUtc?",
		},
		"folded":         {false, "outboxmessages", "processedonutc timestamptz", "'processedonutc IS NULL'", nil, loop},
		"date":           {false, "order_events", "sent_on date", "'sent_on IS NULL'", nil, loop},
		"boolean":        {false, "order_events", "done boolean NOT NULL DEFAULT false", "'done IS NOT TRUE'", []string{guess + "done"}, loop},
		"default":        {false, "chat_messages", "body text, sent_at timestamptz DEFAULT now()", "", []string{"sent_at" + loop}, "where: "},
		"default true":   {false, "order_events", "sent boolean DEFAULT true", "", []string{"sent" + loop}, "where: "},
		"posts":          {false, "posts", "title text, body text, published_at timestamptz", "", []string{"published_at" + loop, "add to source: where: 'published_at IS NULL' done: mark mark: {published_at: 'now()'}"}, guess},
		"shipments":      {false, "shipments", "shipped_at timestamptz, delivered_at timestamptz", "", []string{"shipped_at" + loop, "delivered_at" + loop}, guess},
		"status":         {false, "order_events", "status int", "", []string{"status" + loop, "with your values: where: 'status = 0' done: mark mark: {status: '1'}"}, guess},
		"status of text": {false, "order_events", "status text", "", []string{"where: 'status = ''new''' done: mark mark: {status: '''sent'''}"}, guess},
		"sent_at and status": {
			false, "mail_queue", "sent_at timestamptz, status text", "'sent_at IS NULL'",
			[]string{"set in source, with your values: where: 'sent_at IS NULL AND status = ''new''' mark: {sent_at: 'now()', status: '''sent'''}"},
			"add to source",
		},
		"ends": {
			false, "jobs_outbox", "published_at timestamptz, failed_at timestamptz, is_deleted boolean, deleted_by text", "'published_at IS NULL'",
			[]string{"rows with failed_at or is_deleted" + ended, "where: 'published_at IS NULL AND failed_at IS NULL AND is_deleted IS NOT TRUE'"},
			"deleted_by or",
		},
		"next attempt":      {false, "order_events", "next_attempt_at timestamptz", "", []string{"No row is sent before the time in next_attempt_at"}, loop},
		"SQLite":            {true, "order_events", "handledOn TEXT, cancelled INTEGER DEFAULT 0", "'handledOn IS NULL'", []string{"rows with cancelled" + ended}, loop},
		"SQLite, a default": {true, "order_events", "sent_at TEXT DEFAULT CURRENT_TIMESTAMP", "", []string{"sent_at" + loop}, guess},
		"SQLite, a boolean": {true, "order_events", "synced INTEGER DEFAULT 0", "", []string{"synced" + loop, "where: 'synced = 0' done: mark"}, guess},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, c.sqlite)
			id, group := "bigserial PRIMARY KEY", "uuid"
			if c.sqlite {
				id, group = "INTEGER PRIMARY KEY AUTOINCREMENT", "TEXT"
			}
			db.exec("CREATE TABLE " + c.table + " (id " + id + ", " + c.column + ", group_id " + group + ")")
			path := filepath.Join(t.TempDir(), "relay.yaml")
			r := do(t, nil, "init", "-y", "--source", db.url, "--table", strings.Trim(c.table, `"`), "--sink", "stdout:", "-o", path)
			r.want(t, 0, "Wrote ", "")
			said := strings.Join(strings.Fields(r.stdout), " ")
			for _, want := range c.says {
				if !strings.Contains(strings.ReplaceAll(said, `"`, ""), strings.ReplaceAll(want, `"`, "")) {
					t.Errorf("init does not say %s but\n%s", want, r.stdout)
				}
			}
			if c.not != "" && strings.Contains(said, c.not) {
				t.Errorf("init says %s in\n%s", c.not, r.stdout)
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if proposed := strings.Contains(string(text), writes); proposed != (c.marks != "") || proposed && !strings.Contains(strings.ReplaceAll(string(text), `"`, ""), "\n      where: "+strings.ReplaceAll(c.marks, `"`, "")+"\n") {
				t.Errorf("init writes\n%s", text)
			}
			do(t, db.env, "migrate", "-c", path).want(t, 0, ": applied ", "")
			if strings.HasPrefix(c.column, "next_attempt_at") { // init prints it
				db.exec("CREATE INDEX ON order_events (next_attempt_at) WHERE next_attempt_at IS NOT NULL")
			}
			do(t, db.env, "doctor", "-c", path).want(t, 0, "\n0 problems, ", "")
		})
	}
}

// Doctor names rows that wait although a column says that they were sent, given up or withdrawn; a column with a DEFAULT says nothing.
func TestDoctor_Ended(t *testing.T) {
	t.Parallel()
	for _, sqlite := range []bool{false, true} {
		t.Run(map[bool]string{false: "postgres", true: "sqlite"}[sqlite], func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, sqlite)
			id, group, at, flag := "bigserial PRIMARY KEY", "uuid", "timestamptz", "boolean"
			if sqlite {
				id, group, at, flag = "INTEGER PRIMARY KEY AUTOINCREMENT", "TEXT", "TEXT", "INTEGER"
			}
			db.exec("CREATE TABLE mails (id " + id + ", handled_on " + at + ", sent_at " + at + " DEFAULT CURRENT_TIMESTAMP, cancelled_at " + at + ", is_deleted " + flag + ", group_id " + group + ")")
			path := filepath.Join(t.TempDir(), "relay.yaml")
			do(t, nil, "init", "-y", "--source", db.url, "--table", "mails", "--sink", "stdout:", "-o", path).want(t, 0, "Wrote ", "")
			do(t, db.env, "migrate", "-c", path).want(t, 0, ": applied ", "")
			db.exec("INSERT INTO mails (handled_on, cancelled_at, is_deleted) VALUES (NULL, NULL, NULL), ('2026-01-02', NULL, NULL), (NULL, '2026-01-02', NULL), (NULL, NULL, true)")
			said := strings.ReplaceAll(do(t, db.env, "doctor", "-c", path).stdout, `"`, "")
			for _, want := range []string{
				"(1 of the first 1000: handled_on IS NOT NULL)", "(1 of the first 1000: NOT cancelled_at IS NULL)", "(1 of the first 1000: NOT is_deleted IS NOT TRUE)",
				"add to source.where: cancelled_at IS NULL",
			} {
				if !strings.Contains(said, want) {
					t.Errorf("doctor does not say %s but\n%s", want, said)
				}
			}
			if strings.Contains(said, "sent_at IS NOT NULL") {
				t.Errorf("doctor says\n%s", said)
			}
		})
	}
}
