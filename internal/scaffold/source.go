package scaffold

import "github.com/outboxrelay/relay/internal/introspect"

func (s *Source) write(w *writer, wants string) {
	w.line(2, "source:")
	w.line(3, "url: "+scalar(s.URL.Text))
	if !s.IsOwn() {
		w.comment(3, "The relay's own table, which migrate makes where it is not there. Your application inserts into it, "+
			"inside its own transactions: INSERT INTO "+s.Name+" (topic, key, payload, headers) VALUES (...)")
		w.line(3, "table: "+scalar(literal(s.Name)))
		when(w)
		return
	}
	w.comment(3, "A table of your own: each of its rows is an event, and is DELETED once it was delivered. "+
		"The relay asks of it a primary key and a column group_id that may be NULL, and changes nothing else there.")
	w.line(3, "table: "+scalar(literal(s.Name)))
	if s.Driver == "postgres" {
		w.comment(3, "Where the relay keeps its own tables; migrate makes it.")
		w.line(3, "schema: "+Schema)
	}
	if s.Preset != "" {
		w.comment(3, "The table's shape: it says what the primary key is and what is sent. In its place you may write id and project, docs/tables.md.")
		w.line(3, "preset: "+s.Preset)
		if s.Table != nil && s.Table.Unfit() == "" {
			s.cursor(w)
		}
		when(w)
		return
	}
	w.comment(3, "Its primary key.")
	w.line(3, "id: "+scalar(literal(s.Table.Key[0])))
	s.cursor(w)
	parameter := "$1"
	if s.Driver == "sqlite" {
		parameter = "?"
	}
	w.comment(3, "What is sent. This is run for each batch, "+parameter+" is its group_id, and returns one row an event, with columns id "+
		"and payload, and if you like topic, key, headers and created_at. An event that it returns no row for "+
		"is buried: \"not projected\".")
	p := propose(s.Driver, s.Table, wants)
	for _, note := range p.notes {
		w.comment(3, note)
	}
	w.line(3, "project: |")
	w.lines(4, literal(p.sql))
	when(w)
}

// cursor names the column that grows beside a uuid, or what it is to have none.
func (s *Source) cursor(w *writer) {
	key := s.Table.Column(s.Table.Key[0])
	if key.Integer() || s.Driver == "sqlite" {
		return
	}
	if cursor := s.Table.Cursor(); cursor != "" {
		w.comment(3, "A column that grows, beside a primary key that does not: claims go by it.")
		w.line(3, "cursor: "+scalar(literal(cursor)))
		return
	}
	w.comment(3, "The primary key is a uuid, which does not grow. It works; while another session holds an old snapshot, claims get "+
		"slower. With a column that grows they do not: "+s.AddCursor())
	w.line(3, "#cursor: seq")
}

// AddCursor is a statement for a table whose primary key is a uuid, with no column beside
// it that grows; "" for others.
func (s *Source) AddCursor() string {
	t := s.Table
	if t == nil || s.Driver != "postgres" || !s.IsOwn() || t.Unfit() != "" || t.Column(t.Key[0]).Integer() || t.Cursor() != "" {
		return ""
	}
	return "ALTER TABLE " + table(s.Driver, t) + " ADD COLUMN seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE"
}

// when is how often events are looked for.
func when(w *writer) {
	w.blank()
	w.comment(2, "When to look for events, and how many go at once. eager: go on at once while batches come back full.")
	w.line(2, `#schedule: "@every 1s"`)
	w.line(2, "#eager: true")
}

// Steps are what is to be done in the database before the relay runs, statements of
// SQL, each after what it is for.
func (s *Source) Steps(d *introspect.Database) []Step {
	t := s.Table
	if t == nil || !s.IsOwn() {
		return nil
	}
	var steps []Step
	name := table(s.Driver, t)
	switch group := t.Column("group_id"); {
	case group == nil && s.Driver == "sqlite":
		steps = append(steps, Step{"a column for the batch that a row is in", "ALTER TABLE " + name + " ADD COLUMN group_id text;"})
	case group == nil:
		steps = append(steps, Step{"a column for the batch that a row is in", "ALTER TABLE " + name + " ADD COLUMN group_id uuid;"})
	case group.NotNull && s.Driver == "postgres":
		steps = append(steps, Step{"a row that is in no batch has a group_id of NULL", "ALTER TABLE " + name + " ALTER COLUMN group_id DROP NOT NULL;"})
	}
	if s.Driver != "postgres" {
		return steps
	}
	// A table that is named by its bare name needs no index for a projection to find a
	// batch's rows.
	if group := t.Column("group_id"); t.Schema != "public" && (group == nil || !group.Indexed) {
		steps = append(steps, Step{"the projection finds a batch's rows by it", "CREATE INDEX CONCURRENTLY ON " + name + " (group_id) WHERE group_id IS NOT NULL;"})
	}
	if len(t.Lacks) > 0 {
		steps = append(steps, Step{"as the table's owner", "GRANT SELECT, INSERT, UPDATE, DELETE ON " + name + " TO " + ident("postgres", d.Role) + ";"})
	}
	for _, c := range t.Columns {
		if c.Unseen != "" {
			steps = append(steps, Step{"likewise; claims look how far it is", "GRANT SELECT ON SEQUENCE " + c.Unseen + " TO " + ident("postgres", d.Role) + ";"})
		}
	}
	if p := parent(t); p != nil && p.Table.Unread {
		steps = append(steps, Step{"as its owner; the projection reads it", "GRANT SELECT ON " + table(s.Driver, p.Table) + " TO " + ident("postgres", d.Role) + ";"})
	}
	if mayMake, there := d.Schemas[Schema]; !there && !d.MayMake || there && !mayMake {
		steps = append(steps, Step{"for the relay's own tables, as the database's owner", "CREATE SCHEMA IF NOT EXISTS " + Schema + "; GRANT CREATE, USAGE ON SCHEMA " + Schema + " TO " + ident("postgres", d.Role) + ";"})
	}
	return steps
}

// Step is a statement to run, and what it is for.
type Step struct{ Why, SQL string }
