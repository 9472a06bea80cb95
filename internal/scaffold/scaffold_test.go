package scaffold

import (
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/introspect"
)

func TestNameOf(t *testing.T) {
	t.Parallel()
	for table, want := range map[string]string{
		"outbox_events": "events", "contact_activity_events": "contact_activity_events", "app.Orders": "orders",
		`"My Shop"."Odd.Events"`: "odd_events", `"%"`: "events",
	} {
		if got := NameOf(table); got != want {
			t.Errorf("NameOf(%s) is %s, want %s", table, got, want)
		}
	}
}

// No part of a URL is in the file.
func TestDraftWithoutSecrets(t *testing.T) {
	t.Parallel()
	for _, sink := range []string{
		"redis://:s3cret@cache/0", "nats://s3cret@h", "https://s3cret@h/{topic}?hapikey=s3cret", "https://hooks.slack.com/services/T/B/s3cret",
		"https://h/s3cret/_bulk",
	} {
		d := Draft{File: "relay.yaml", Name: "p", Sink: sink, Source: Source{Driver: "postgres", URL: "postgres://app:s3cret@db/app", Name: "outbox_events"}}
		text := d.Text()
		if strings.Contains(text, "s3cret") || !strings.Contains(text, "url: ${RELAY_SOURCE_URL}\n") || !strings.Contains(text, "url: ${RELAY_SINK_URL}\n") {
			t.Errorf("for the sink %s the file is\n%s", sink, text)
		}
	}
}

// table returns a table with the primary key id and columns "name [type]".
func table(name string, columns ...string) *introspect.Table {
	t := &introspect.Table{Schema: "public", Name: name, Key: []string{"id"}, Columns: []introspect.Column{{Name: "id", Type: "bigint", NotNull: true}}}
	for _, c := range columns {
		name, kind, typed := strings.Cut(c, " ")
		if !typed {
			kind = "text"
		}
		t.Columns = append(t.Columns, introspect.Column{Name: name, Type: kind, NotNull: true})
	}
	return t
}

func refer(from, to *introspect.Table, column string, notNull bool) *introspect.Table {
	from.Columns = append(from.Columns, introspect.Column{Name: column, Type: "bigint", NotNull: notNull})
	from.Refs = append(from.Refs, introspect.Ref{Column: column, Table: to, To: "id"})
	return from
}

// A projection sends all columns of the event, and adds rows that it refers to.
func TestPropose(t *testing.T) {
	t.Parallel()
	const (
		must    = "Each payload must have the property email"
		missing = "No column is named email"
	)
	for name, try := range map[string]struct {
		table         *introspect.Table
		driver, wants string
		sql, warns    string
	}{
		"OwnRow": {table("signups", "email"), "postgres", "", "to_jsonb(e) - 'group_id' AS payload\n", ""},
		"Parent": {
			refer(table("events", "visit"), table("visits", "at"), "visit_id", true), "postgres", "",
			"to_jsonb(e) - 'group_id'\n         || jsonb_build_object('visit_row', jsonb_build_object('id', p.id, 'at', p.at)) AS payload\nFROM {events} e\nJOIN visits p ON p.id = e.visit_id", "",
		},
		"ParentMayBeNull": {
			refer(table("events"), table("visits"), "visit_id", false), "postgres", "",
			"jsonb_build_object('visit', CASE WHEN p.id IS NOT NULL THEN jsonb_build_object('id', p.id) END) AS payload\nFROM {events} e\nLEFT JOIN visits p ON p.id = e.visit_id", "",
		},
		"SQLite": {
			refer(table("events", "photo blob"), table("visits", "data json"), "visit_id", true), "sqlite", "",
			"json_object('id', e.id, 'photo', hex(e.photo), 'visit_id', e.visit_id,\n           " +
				"'visit', json_object('id', p.id, 'data', json(p.data))) AS payload\nFROM {events} e\nJOIN visits p ON p.id = e.visit_id", "",
		},
		"PayloadColumn": {table("events", "payload jsonb"), "postgres", "email", "e.payload\n", must},
		"MessageType":   {table("Messages", "messageType", "aggregateId", "eventData jsonb"), "postgres", "", "e.\"messageType\" AS topic,\n       e.\"aggregateId\"::text AS key,\n       e.\"eventData\" AS payload", ""},
		"WantedInEvent": {table("signups", "email"), "postgres", "email", "to_jsonb(e) - 'group_id' AS payload\n", ""},
		"WantedInParent": {
			refer(table("events"), table("people", "email"), "person_id", true), "postgres", "email",
			"jsonb_build_object('person', jsonb_build_object('id', p.id, 'email', p.email), 'email', p.email) AS payload\n", "",
		},
		"WantedBehindParent": {
			refer(table("events"), refer(table("visits"), table("people", "email"), "person_id", true), "visit_id", false), "postgres", "email",
			"'email', w.email) AS payload\nFROM {events} e\nLEFT JOIN visits p ON p.id = e.visit_id\nLEFT JOIN people w ON w.id = p.person_id", "",
		},
		"WantedBesideParent": {
			refer(refer(table("events"), table("visits"), "visit_id", true), table("people", "email"), "person_id", true), "postgres", "email",
			"'email', w.email) AS payload\nFROM {events} e\nJOIN visits p ON p.id = e.visit_id\nJOIN people w ON w.id = e.person_id", "",
		},
		"WantedNowhere": {refer(table("events"), table("people", "name"), "person_id", true), "postgres", "email", "jsonb_build_object('id', p.id, 'name', p.name)) AS payload\n", missing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := propose(try.driver, try.table, try.wants, false)
			if !strings.Contains(p.sql, try.sql) {
				t.Errorf("got\n%s\nwant\n%s", p.sql, try.sql)
			}
			if warns := strings.Join(p.warnings, "\n"); (warns == "") != (try.warns == "") || !strings.HasPrefix(warns, try.warns) {
				t.Errorf("got %q, want %q", warns, try.warns)
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	d := Draft{Sink: "https://api.hubapi.com/crm/v3/objects/contacts/batch/upsert", Source: Source{Driver: "postgres", Name: "outbox_events"}}
	if warns := d.Warnings(); len(warns) != 1 || !strings.HasPrefix(warns[0], "Each payload must have the property email") {
		t.Errorf("for the relay's own table it warns %q", warns)
	}
	d.Sink = "redis://cache"
	if warns := d.Warnings(); warns != nil {
		t.Errorf("for Redis it warns %q", warns)
	}
}

// A join that is guessed from a name loses no event, and is named as guessed.
func TestPropose_Guess(t *testing.T) {
	t.Parallel()
	events := refer(table("events"), table("visits"), "visit_id", true)
	events.Refs[0].Inferred = true
	p := propose("postgres", events, "", false)
	if !strings.Contains(p.sql, "CASE WHEN p.id IS NOT NULL THEN jsonb_build_object('id', p.id) END) AS payload\nFROM {events} e\nLEFT JOIN visits p ON p.id = e.visit_id") {
		t.Errorf("got\n%s", p.sql)
	}
	if guesses := strings.Join(p.guesses, "\n"); guesses != "joins visits by visit_id, guessed from the name; no foreign key" {
		t.Errorf("the guesses are %q", guesses)
	}
	events.Refs[0].Inferred = false
	if p := propose("postgres", events, "", false); p.guesses != nil {
		t.Errorf("of a foreign key the guesses are %q", p.guesses)
	}
}

// The other columns of a table with a payload are headers, unless NATS could not carry them.
func TestPropose_Headers(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]struct {
		columns []string
		driver  string
		nats    bool
		want    string
	}{
		"None":        {[]string{"payload jsonb", "type", "created_at timestamp with time zone"}, "postgres", false, "e.payload\nFROM"},
		"Postgres":    {[]string{"payload jsonb", "tenant", "api_key"}, "postgres", false, "e.payload,\n       jsonb_strip_nulls(jsonb_build_object('tenant', e.tenant::text)) AS headers\nFROM"},
		"Own":         {[]string{"payload jsonb", "headers jsonb"}, "postgres", false, "e.payload,\n       e.headers\nFROM"},
		"OwnAndMore":  {[]string{"payload jsonb", "headers jsonb", "n bigint"}, "postgres", false, "coalesce(e.headers::jsonb, '{}') || jsonb_strip_nulls(jsonb_build_object('n', e.n::text)) AS headers"},
		"SQLite":      {[]string{"payload json", "n integer", "b blob"}, "sqlite", false, "json_patch(coalesce(NULL, '{}'), json_object('n', CAST(e.n AS TEXT), 'b', hex(e.b))) AS headers"},
		"OddName":     {[]string{"payload jsonb", "größe"}, "postgres", false, "to_jsonb(e) - 'group_id' AS payload"},
		"NATSText":    {[]string{"payload jsonb", "tenant"}, "postgres", true, "to_jsonb(e) - 'group_id' AS payload"},
		"NATSNumbers": {[]string{"payload jsonb", "tenant bigint", "api_key", "type"}, "postgres", true, "jsonb_build_object('tenant', e.tenant::text)) AS headers"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if p := propose(try.driver, table("events", try.columns...), "", try.nats); !strings.Contains(p.sql, try.want) {
				t.Errorf("got\n%s\nwant\n%s", p.sql, try.want)
			}
		})
	}
}

// The name of a column tells when a row was inserted, if the type fits.
func TestCreatedColumn(t *testing.T) {
	t.Parallel()
	for want, columns := range map[string][]string{
		"created_at":  {"inserted_at timestamp with time zone", "created_at timestamp"},
		"inserted_at": {"updated_at timestamp", "occurred_at timestamp", "inserted_at timestamp with time zone", "created_at text"},
		"createdAt":   {"timestamp timestamp", "createdAt timestamp with time zone"},
		"timestamp":   {"timestamp timestamp"},
		"":            {"updated_at timestamp", "due_at timestamp", "created text"},
	} {
		if got := createdColumn("postgres", table("events", columns...)); got != want {
			t.Errorf("of %v it is %q, want %q", columns, got, want)
		}
	}
	if got := createdColumn("sqlite", table("events", "created_at text")); got != "created_at" {
		t.Errorf("on SQLite it is %q", got)
	}
}
