package scaffold

import (
	"fmt"
	"strings"

	"github.com/outboxrelay/relay/internal/introspect"
)

// proposal is a projection, and what there is to say about it: warnings on the terminal
// too.
type proposal struct {
	sql             string
	notes, warnings []string
}

// The columns of a table of events that mean what an event has.
var (
	topicColumns   = []string{"topic", "event_type", "event_name", "event", "type"}
	keyColumns     = []string{"key", "aggregate_id", "aggregateid", "entity_id", "partition_key"}
	payloadColumns = []string{"payload", "data", "event_data", "body"}
	createdColumns = []string{"inserted_at", "occurred_at", "created_on", "created"}
)

// mostColumns is how many an object is made of on SQLite, whose functions take 127
// arguments at the most.
const mostColumns = 60

// propose writes the SELECT that one would begin with: what the table itself has of an
// event; else the row that it refers to; else its own. wants is what the payload has to
// have, or "".
func propose(driver string, t *introspect.Table, wants string) proposal {
	b := proposer{driver: driver, t: t, parent: parent(t), wants: wants}
	b.column("e", t.Key[0], "id")
	b.topic()
	b.key()
	b.payload()
	b.created()
	parameter := "$1"
	if driver == "sqlite" {
		parameter = "?"
	}
	sql := "SELECT " + strings.Join(b.columns, ",\n       ") + "\nFROM " + table(driver, t) + " e\n"
	for _, join := range b.joins {
		sql += join + "\n"
	}
	return proposal{sql + "WHERE e.group_id = " + parameter, append(b.warnings, b.notes...), b.warnings}
}

// parent is the row that an event is about: what it refers to first, and must.
func parent(t *introspect.Table) *introspect.Ref {
	for _, must := range []bool{true, false} {
		for i := range t.Refs {
			if c := t.Column(t.Refs[i].Column); c != nil && c.NotNull == must {
				return &t.Refs[i]
			}
		}
	}
	return nil
}

type proposer struct {
	driver  string
	t       *introspect.Table
	parent  *introspect.Ref
	wants   string
	joins   []string
	columns []string

	notes, warnings []string
}

func (b *proposer) column(of, name, as string) {
	column := of + "." + ident(b.driver, name)
	if name != as {
		column += " AS " + ident(b.driver, as)
	}
	b.columns = append(b.columns, column)
}

// find is the first of the columns that is there and fits.
func (b *proposer) find(names []string, fits func(*introspect.Column) bool) *introspect.Column {
	for _, name := range names {
		if c := b.t.Column(name); c != nil && fits(c) {
			return c
		}
	}
	return nil
}

func (b *proposer) topic() {
	name := text(b.t.Name)
	switch c := b.find(topicColumns, (*introspect.Column).Text); {
	case c == nil:
		b.columns = append(b.columns, name+" AS topic")
	case c.NotNull:
		b.column("e", c.Name, "topic")
	default:
		b.columns = append(b.columns, fmt.Sprintf("coalesce(e.%s, %s) AS topic", ident(b.driver, c.Name), name))
	}
}

// key is what keeps together what is about one thing: whom the row that the event is
// about belongs to, else that row, else what the event itself names.
func (b *proposer) key() {
	add := func(of, name string) {
		b.columns = append(b.columns, b.asText(of+"."+ident(b.driver, name))+" AS "+ident(b.driver, "key"))
	}
	if c := b.find(keyColumns, func(*introspect.Column) bool { return true }); c != nil {
		add("e", c.Name)
		return
	}
	if b.parent != nil && b.find(payloadColumns, b.isPayload) == nil {
		p := b.parent.Table
		if len(p.Refs) > 0 {
			add("p", p.Refs[0].Column)
			return
		}
		if c := belongs(p, b.parent.To); c != "" {
			add("p", c)
			return
		}
		add("p", b.parent.To)
		return
	}
	if b.parent != nil {
		add("e", b.parent.Column)
		return
	}
	if c := belongs(b.t, b.t.Key[0]); c != "" {
		add("e", c)
	}
}

// belongs is the first column that sounds like a reference.
func belongs(t *introspect.Table, but string) string {
	for _, c := range t.Columns {
		if c.Name != but && c.Name != "group_id" && strings.HasSuffix(strings.ToLower(c.Name), "_id") {
			return c.Name
		}
	}
	return ""
}

func (b *proposer) isPayload(c *introspect.Column) bool {
	return c.JSON() || b.driver == "sqlite" && c.Text()
}

func (b *proposer) payload() {
	if c := b.find(payloadColumns, b.isPayload); c != nil {
		b.column("e", c.Name, "payload")
		if b.wants != "" {
			b.warnings = append(b.warnings, unseen(b.wants))
		}
		for i := range b.t.Refs {
			b.notes = append(b.notes, "What "+b.t.Refs[i].Column+" refers to can be sent too: "+b.join("JOIN", "e", "p", &b.t.Refs[i]))
		}
		return
	}
	of, t := "e", b.t
	if b.parent != nil {
		of, t = "p", b.parent.Table
		b.joins = append(b.joins, b.join("JOIN", "e", "p", b.parent))
		b.admit(b.parent)
		for i := range b.t.Refs {
			if ref := &b.t.Refs[i]; ref != b.parent {
				b.notes = append(b.notes, "The table refers to another row as well: "+b.join("LEFT JOIN", "e", "o", ref))
			}
		}
	}
	wanted := b.wanted(of, t)
	if b.driver == "postgres" {
		object := "to_jsonb(" + of + ")"
		if of == "e" {
			object += " - 'group_id'"
		}
		if wanted != "" {
			object += " || jsonb_build_object(" + wanted + ")"
		}
		b.columns = append(b.columns, object+" AS payload")
		return
	}
	b.columns = append(b.columns, b.object(of, t, wanted)+" AS payload")
}

func (b *proposer) join(how, of, as string, ref *introspect.Ref) string {
	return fmt.Sprintf("%s %s %s ON %s.%s = %s.%s", how, table(b.driver, ref.Table), as, as, ident(b.driver, ref.To), of, ident(b.driver, ref.Column))
}

// admit says that a join goes by names alone.
func (b *proposer) admit(ref *introspect.Ref) {
	if ref.Guessed {
		b.notes = append(b.notes, "No foreign key says that "+ref.Column+" refers to "+ref.Table.FullName()+": their names do.")
	}
}

// object makes JSON of a row on SQLite.
func (b *proposer) object(of string, t *introspect.Table, more string) string {
	var pairs []string
	if more != "" {
		pairs = append(pairs, more)
	}
	for _, c := range t.Columns {
		value := of + "." + ident(b.driver, c.Name)
		switch {
		case of == "e" && c.Name == "group_id":
			continue
		case c.JSON():
			value = "json(" + value + ")"
		case c.Type == "blob":
			value = "hex(" + value + ")"
		}
		pairs = append(pairs, text(c.Name)+", "+value)
	}
	if len(pairs) > mostColumns {
		b.notes = append(b.notes, fmt.Sprintf("Only the first %d columns are here: a function of SQLite's takes no more. json_patch joins two objects.", mostColumns))
		pairs = pairs[:mostColumns]
	}
	var object strings.Builder
	object.WriteString("json_object(")
	for i, pair := range pairs {
		switch {
		case i > 0 && i%3 == 0:
			object.WriteString(",\n           ")
		case i > 0:
			object.WriteString(", ")
		}
		object.WriteString(pair)
	}
	return object.String() + ")"
}

// created is when the event came about, where the relay does not find it by itself.
func (b *proposer) created() {
	if b.driver != "postgres" || b.t.Column("created_at") != nil {
		return
	}
	zoned := func(c *introspect.Column) bool { return strings.HasPrefix(c.Type, "timestamp") }
	c := b.find(createdColumns, zoned)
	switch {
	case c == nil:
	case c.Type == "timestamp with time zone":
		b.column("e", c.Name, "created_at")
	default:
		b.columns = append(b.columns, "e."+ident(b.driver, c.Name)+" AT TIME ZONE 'UTC' AS created_at")
	}
}

func (b *proposer) asText(expression string) string {
	if b.driver == "sqlite" {
		return "CAST(" + expression + " AS TEXT)"
	}
	return expression + "::text"
}
