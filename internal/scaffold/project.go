package scaffold

import (
	"fmt"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/internal/introspect"
)

// The column names of event tables, by their meaning. The first one that the table has is used.
var (
	topicColumns   = []string{"topic", "event_type", "event_name", "event", "type"}
	keyColumns     = []string{"key", "aggregate_id", "aggregateid", "entity_id", "partition_key"}
	payloadColumns = []string{"payload", "data", "event_data", "body"}
	createdColumns = []string{"inserted_at", "occurred_at", "created_on", "created"}
)

// proposal is a projection to begin with. Notes go to the file's comments, warnings to the terminal as well.
type proposal struct {
	sql             string
	notes, warnings []string

	driver  string
	t       *introspect.Table
	parent  *introspect.Ref
	columns []string
	joins   []string
}

// propose writes a projection. Its payload is the table's own payload column if there is one. Otherwise it
// is the event's whole row, with the row that the event refers to inside it. wants is a property that the
// payload must have, or "".
func propose(driver string, t *introspect.Table, wants string) proposal {
	p := proposal{driver: driver, t: t, parent: parent(t)}
	p.column(t.Key[0], "id")
	p.addTopic()
	payload := p.find(payloadColumns, func(c *introspect.Column) bool { return c.JSON() || driver == "sqlite" && c.Text() })
	p.addKey(payload == nil)
	if payload != nil {
		p.column(payload.Name, "payload")
		if wants != "" {
			p.warnings = append(p.warnings, mustHave(wants))
		}
	} else {
		p.addRow(wants)
	}
	p.addCreated()
	p.sql = "SELECT " + strings.Join(p.columns, ",\n       ") + "\nFROM " + strings.Join(append([]string{"{events} e"}, p.joins...), "\n")
	return p
}

// parent returns the reference to the row that an event is about: the first one that is not null,
// otherwise the first one.
func parent(t *introspect.Table) *introspect.Ref {
	required := func(r introspect.Ref) bool { return t.Column(r.Column).NotNull }
	if i := slices.IndexFunc(t.Refs, required); i >= 0 {
		return &t.Refs[i]
	}
	if len(t.Refs) > 0 {
		return &t.Refs[0]
	}
	return nil
}

// column adds a column of the event.
func (p *proposal) column(name, as string) {
	column := "e." + identifier(name)
	if name != as {
		column += " AS " + as
	}
	p.columns = append(p.columns, column)
}

// find returns the first of the columns that exists and fits; nil if none does.
func (p *proposal) find(names []string, fits func(*introspect.Column) bool) *introspect.Column {
	for _, name := range names {
		if c := p.t.Column(name); c != nil && fits(c) {
			return c
		}
	}
	return nil
}

func (p *proposal) addTopic() {
	name := text(p.t.Name)
	switch c := p.find(topicColumns, (*introspect.Column).Text); {
	case c == nil:
		p.columns = append(p.columns, name+" AS topic")
	case c.NotNull:
		p.column(c.Name, "topic")
	default:
		p.columns = append(p.columns, fmt.Sprintf("coalesce(e.%s, %s) AS topic", identifier(c.Name), name))
	}
}

// addKey adds the first of these that exists: a key column, the owner of the joined parent, the parent.
func (p *proposal) addKey(joined bool) {
	key := ""
	if c := p.find(keyColumns, func(*introspect.Column) bool { return true }); c != nil {
		key = "e." + identifier(c.Name)
	} else if p.parent == nil {
		return
	} else if refs := p.parent.Table.Refs; joined && len(refs) > 0 {
		key = "p." + identifier(refs[0].Column)
	} else {
		key = "e." + identifier(p.parent.Column)
	}
	if p.driver == "sqlite" {
		key = "CAST(" + key + " AS TEXT)"
	} else {
		key += "::text"
	}
	p.columns = append(p.columns, key+` AS key`)
}

// addRow adds the event's row as its payload. The row of the parent is a property of it, so no column
// replaces another.
func (p *proposal) addRow(wants string) {
	var more []string
	if p.parent != nil {
		p.join("e", "p", p.parent)
		name := strings.TrimSuffix(p.parent.Column, "_id")
		for p.t.Column(name) != nil {
			name += "_row"
		}
		more = append(more, text(name)+", "+p.row("p", p.parent.Table, nil))
	}
	if wanted := p.wanted(wants); wanted != "" {
		more = append(more, wanted)
	}
	p.columns = append(p.columns, p.row("e", p.t, more)+" AS payload")
}

// row returns a row as JSON, without its group_id if it is the event's, with more properties.
func (p *proposal) row(alias string, t *introspect.Table, more []string) string {
	if p.driver == "postgres" {
		object := "to_jsonb(" + alias + ")"
		if alias == "e" {
			object += " - 'group_id'"
		}
		if len(more) > 0 {
			object += " || jsonb_build_object(" + strings.Join(more, ", ") + ")"
		}
		return object
	}
	var pairs []string
	for _, c := range t.Columns {
		value := alias + "." + identifier(c.Name)
		switch {
		case alias == "e" && c.Name == "group_id":
			continue
		case c.JSON():
			value = "json(" + value + ")"
		case c.Type == "blob":
			value = "hex(" + value + ")"
		}
		pairs = append(pairs, text(c.Name)+", "+value)
	}
	return "json_object(" + strings.Join(append(pairs, more...), ",\n           ") + ")"
}

// table returns the table of the alias e or p.
func (p *proposal) table(alias string) *introspect.Table {
	if alias == "e" {
		return p.t
	}
	return p.parent.Table
}

// join adds a joined row. An event whose reference is null keeps its row.
func (p *proposal) join(from, as string, ref *introspect.Ref) {
	how := "JOIN"
	if c := p.table(from).Column(ref.Column); !c.NotNull || len(p.joins) > 0 && strings.HasPrefix(p.joins[0], "LEFT") {
		how = "LEFT JOIN"
	}
	p.joins = append(p.joins, fmt.Sprintf("%s %s %s ON %s.%s = %s.%s",
		how, tableName(p.driver, ref.Table), as, as, identifier(ref.To), from, identifier(ref.Column)))
	if ref.Inferred {
		p.notes = append(p.notes, "No foreign key exists for "+ref.Column+". Its name suggests that it refers to "+ref.Table.FullName()+".")
	}
}

// wanted returns the property that the payload must have, from the nearest row with a column of that
// name: the parent or a row that the parent or the event refers to. It returns "" if the event has it.
func (p *proposal) wanted(wants string) string {
	if wants == "" || p.t.Column(wants) != nil {
		return ""
	}
	pair := func(alias string) string { return text(wants) + ", " + alias + "." + identifier(wants) }
	if p.parent != nil {
		if p.parent.Table.Column(wants) != nil {
			return pair("p")
		}
		for _, from := range []string{"p", "e"} {
			for i, ref := range p.table(from).Refs {
				if ref.Table.Column(wants) != nil {
					p.join(from, "w", &p.table(from).Refs[i])
					return pair("w")
				}
			}
		}
	}
	p.warnings = append(p.warnings, fmt.Sprintf("No column is named %s, which the payload must have. Add it to source.project, or change sink.request. "+
		"Until then every event is rejected and becomes a dead letter.", wants))
	return ""
}

// addCreated adds the time of the event, if the table has one that the relay does not find by itself.
func (p *proposal) addCreated() {
	if p.driver != "postgres" || p.t.Column("created_at") != nil {
		return
	}
	c := p.find(createdColumns, func(c *introspect.Column) bool { return strings.HasPrefix(c.Type, "timestamp") })
	switch {
	case c == nil:
	case c.Type == "timestamp with time zone":
		p.column(c.Name, "created_at")
	default:
		p.columns = append(p.columns, "e."+identifier(c.Name)+" AT TIME ZONE 'UTC' AS created_at")
	}
}

// Warnings returns the warnings about properties that the API requires.
func (d *Draft) Warnings() []string {
	wants := d.wants()
	switch {
	case wants == "":
		return nil
	case d.Source.IsCustom() && d.Source.Preset == "":
		return propose(d.Source.Driver, d.Source.Table, wants).warnings
	}
	return []string{mustHave(wants)}
}

// mustHave is the warning for payloads that the application writes.
func mustHave(property string) string {
	return "Each payload must have the property " + property + ". An event without it is rejected and becomes a dead letter."
}
