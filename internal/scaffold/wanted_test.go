package scaffold

import (
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/introspect"
)

// What an API finds an object by is taken from the column that is called so, else from
// one like it, which is said; and that there is none is said.
func TestWanted(t *testing.T) {
	t.Parallel()
	made := func(name string, columns ...string) *introspect.Table {
		table := &introspect.Table{Schema: "public", Name: name, Key: []string{"id"}, Columns: []introspect.Column{{Name: "id", Type: "bigint", NotNull: true}}}
		for _, c := range columns {
			name, kind, typed := strings.Cut(c, " ")
			if !typed {
				kind = "text"
			}
			table.Columns = append(table.Columns, introspect.Column{Name: name, Type: kind, NotNull: true})
		}
		return table
	}
	refer := func(from, to *introspect.Table, column string) *introspect.Table {
		from.Columns = append(from.Columns, introspect.Column{Name: column, Type: "bigint", NotNull: true})
		from.Refs = append(from.Refs, introspect.Ref{Column: column, Table: to, To: "id"})
		return from
	}
	const (
		like = "The payload has to have email: "
		none = "The payload has to have email, and no column is called like that"
	)
	for name, try := range map[string]struct {
		table      *introspect.Table
		sql, warns string
	}{
		"itself":       {made("signups", "email"), "to_jsonb(e) - 'group_id' AS payload\n", ""},
		"the parent's": {refer(made("events"), made("people", "email"), "person_id"), "to_jsonb(p) AS payload\n", ""},
		"another name": {
			refer(made("events"), made("people", "name", "contact_email"), "person_id"),
			"to_jsonb(p) || jsonb_build_object('email', p.contact_email) AS payload\n", like + "contact_email of people is sent as that",
		},
		"the nearest": {
			made("signups", "email_template", "referrers_email", "e_mail", "email_sent boolean"),
			"jsonb_build_object('email', e.e_mail) AS payload\n", like + "e_mail of signups",
		},
		"the event's own": {
			refer(made("events", "email"), made("visits", "email_client"), "visit_id"),
			"to_jsonb(p) || jsonb_build_object('email', e.email) AS payload\n", "",
		},
		"farther, and so called": {
			refer(made("events"), refer(made("visits", "work_email"), made("people", "email"), "person_id"), "visit_id"),
			"jsonb_build_object('email', w.email) AS payload\nFROM events e\nJOIN visits p ON p.id = e.visit_id\nJOIN people w ON w.id = p.person_id\n", "",
		},
		"beside the parent": {
			refer(refer(made("events"), made("visits"), "visit_id"), made("people", "mail", "Email"), "person_id"),
			`jsonb_build_object('email', w."Email") AS payload` + "\nFROM events e\nJOIN visits p ON p.id = e.visit_id\nJOIN people w ON w.id = e.person_id\n",
			like + "Email of people",
		},
		"no text": {made("signups", "email_sent boolean"), "to_jsonb(e) - 'group_id' AS payload\n", none},
		"nowhere": {refer(made("events"), made("people", "name"), "person_id"), "to_jsonb(p) AS payload\n", none},
		"unseen":  {made("events", "payload jsonb"), "e.payload\n", "Each payload has to have email: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := Draft{
				File: "relay.yaml", Name: "p", Sink: URL{Full: "https://api.hubapi.com/crm/v3/objects/contacts/batch/upsert"},
				Source: Source{Driver: "postgres", Name: try.table.Name, Table: try.table},
			}
			said := strings.Join(d.Warnings(), "\n")
			if sql := propose("postgres", try.table, "email").sql; !strings.Contains(sql, try.sql) {
				t.Errorf("it proposes\n%s\n%s was expected", sql, try.sql)
			}
			if (said == "") != (try.warns == "") || !strings.HasPrefix(said, try.warns) {
				t.Errorf("it warns %q, %q was expected", said, try.warns)
			}
			comments := strings.Join(strings.Fields(strings.ReplaceAll(d.Text(), "# ", "")), " ")
			if !strings.Contains(comments, try.warns) {
				t.Errorf("no comment says %q:\n%s", try.warns, d.Text())
			}
		})
	}
	relays := Draft{Sink: URL{Full: "https://api.hubapi.com/crm/v3/objects/contacts/batch/upsert"}, Source: Source{Driver: "postgres", Name: "outbox_events"}}
	if said := relays.Warnings(); len(said) != 1 || !strings.HasPrefix(said[0], "Each payload has to have email: ") {
		t.Errorf("of the relay's own table it warns %q", said)
	}
	relays.Sink.Full = "redis://cache"
	if said := relays.Warnings(); said != nil {
		t.Errorf("Redis wants nothing of a payload, and it warns %q", said)
	}
}
