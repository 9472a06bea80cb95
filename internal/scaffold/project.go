package scaffold

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/internal/introspect"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// The column names of event tables, by their meaning, in lower case and without separators. The first one that the table has is used.
var (
	topicColumns   = []string{"topic", "eventtype", "eventname", "messagetype", "event", "type"}
	keyColumns     = []string{"key", "aggregateid", "entityid", "partitionkey"}
	payloadColumns = []string{"payload", "data", "eventdata", "body"}
)

// bareName is the name of a column in lower case and without separators.
func bareName(column string) string { return strings.ReplaceAll(strings.ToLower(column), "_", "") }

// proposal is a projection to begin with. Notes go to the file's comments, warnings to the terminal as well.
type proposal struct {
	sql             string
	notes, warnings []string
	// sent are the columns whose values are sent, those of another row after its name. unsent are those that are not, because
	// their names suggest secrets.
	sent, unsent []string
	// guesses are the joins that no foreign key declares.
	guesses []string
	// later says what happens to columns that the tables get later.
	later string

	// fields are the fields of the event that columns are sent as, but for payload.
	fields map[string]string

	driver  string
	t       *introspect.Table
	parent  *introspect.Ref
	created string
	columns []string
	joins   []string
	used    map[string]bool // columns of the event that are sent outside of payload and headers
}

// propose writes a projection. Its payload is the table's own payload column if there is one, and the other columns are
// headers. Otherwise it is the event's whole row, with the row that the event refers to inside it. wants is a property that the
// payload must have, or "". nats reports whether a sink is NATS, whose headers take no line breaks.
func propose(driver string, t *introspect.Table, wants string, nats bool) proposal {
	p := proposal{driver: driver, t: t, parent: parent(t), created: createdColumn(driver, t), used: map[string]bool{t.Key[0]: true}, fields: map[string]string{}}
	p.column(t.Key[0], "id")
	p.addTopic()
	payload := p.payloadColumn(nats)
	p.addKey(payload == nil)
	if payload != nil {
		p.column(payload.Name, "payload")
		p.addHeaders(payload.Name)
		if !payload.NotNull {
			p.notes = append(p.notes, "A row whose "+payload.Name+" is NULL becomes a dead letter, because an event needs a payload.")
		}
		if wants != "" {
			p.warnings = append(p.warnings, mustHave(wants))
		}
	} else {
		p.addRow(wants)
	}
	p.later = "Columns that are added later are not sent; `relay doctor` names those of " + t.FullName() + "."
	if payload == nil && driver == "postgres" { // to_jsonb(e)
		p.later = "Columns that " + t.FullName() + " gets later are sent too."
		if p.parent != nil {
			p.later = "Columns that " + t.FullName() + " gets later are sent too, those of " + p.parent.Table.FullName() + " are not."
		}
	}
	p.sql = "SELECT " + strings.Join(p.columns, ",\n       ") + "\nFROM " + strings.Join(append([]string{"{events} e"}, p.joins...), "\n")
	return p
}

// payloadColumn returns the column that has the payload; nil if there is none, or if another column cannot be a header.
func (p *proposal) payloadColumn(nats bool) *introspect.Column {
	c := p.find(payloadColumns, func(c *introspect.Column) bool {
		return c.JSON() || p.driver == "sqlite" && c.Text() && bareName(c.Name) != "body"
	})
	unfit := func(c introspect.Column) bool {
		known := slices.Contains(slices.Concat(topicColumns, keyColumns, payloadColumns), bareName(c.Name)) || slices.Contains([]string{"headers", "group_id", p.created, p.t.Key[0]}, c.Name)
		return !headerName.MatchString(c.Name) || nats && !known && (c.Text() || c.JSON()) && !isSecret(p.t, c.Name)
	}
	if c != nil && slices.ContainsFunc(p.t.Columns, unfit) {
		return nil
	}
	return c
}

var headerName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

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
	p.used[name] = true
	if as != "payload" {
		p.fields[name] = as
	}
	column := "e." + identifier(name)
	if name != as {
		column += " AS " + as
	}
	p.columns = append(p.columns, column)
}

// find returns the first of the columns that exists and fits; nil if none does.
func (p *proposal) find(names []string, fits func(*introspect.Column) bool) *introspect.Column {
	for _, name := range names {
		for i := range p.t.Columns {
			if c := &p.t.Columns[i]; bareName(c.Name) == name && fits(c) {
				return c
			}
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
		p.used[c.Name], p.fields[c.Name] = true, "topic"
	}
}

// addKey adds the first of these that exists: a key column, the owner of the joined parent, the parent.
func (p *proposal) addKey(joined bool) {
	key, table, name := "e.", p.t, ""
	if c := p.find(keyColumns, func(*introspect.Column) bool { return true }); c != nil {
		name = c.Name
	} else if p.parent == nil {
		return
	} else if refs := p.parent.Table.Refs; joined && len(refs) > 0 {
		key, table, name = "p.", p.parent.Table, refs[0].Column
	} else {
		name = p.parent.Column
	}
	if isSecret(table, name) {
		return
	}
	if key == "e." {
		p.used[name], p.fields[name] = true, "key"
	}
	key += identifier(name)
	if p.driver == "sqlite" {
		key = "CAST(" + key + " AS TEXT)"
	} else {
		key += "::text"
	}
	p.columns = append(p.columns, key+` AS key`)
}

// isSecret reports whether the name of a column suggests a secret. The id of another row is none.
func isSecret(t *introspect.Table, column string) bool {
	isRef := slices.ContainsFunc(t.Refs, func(r introspect.Ref) bool { return r.Column == column })
	return buffer.LooksSecret(column) && (!isRef || !strings.HasSuffix(strings.ToLower(column), "id"))
}

// sendable returns the columns of a row that are sent, and adds the others to p.unsent. The event's group_id is the relay's.
func (p *proposal) sendable(alias string) (columns []introspect.Column) {
	t := p.table(alias)
	for _, c := range t.Columns {
		switch {
		case alias == "e" && c.Name == "group_id":
		case isSecret(t, c.Name):
			p.unsent = append(p.unsent, t.Name+"."+c.Name)
		default:
			columns = append(columns, c)
		}
	}
	return columns
}

// addHeaders adds the columns that are sent nowhere else as headers.
func (p *proposal) addHeaders(payload string) {
	own := ""
	var pairs []string
	for _, c := range p.sendable("e") {
		p.sent = append(p.sent, c.Name)
		value := "e." + identifier(c.Name)
		switch {
		case p.used[c.Name], c.Name == payload:
			continue
		case c.Name == p.created:
			p.fields[c.Name] = "created_at"
			continue
		}
		p.fields[c.Name] = "headers"
		switch {
		case c.Name == "headers" && (c.JSON() || p.driver == "sqlite"):
			own = value
		case p.driver == "postgres":
			pairs = append(pairs, text(c.Name)+", "+value+"::text")
		case c.Type == "blob":
			pairs = append(pairs, text(c.Name)+", hex("+value+")")
		default:
			pairs = append(pairs, text(c.Name)+", CAST("+value+" AS TEXT)")
		}
	}
	switch {
	case pairs == nil && own == "":
		return
	case pairs == nil:
		p.columns = append(p.columns, own)
	case p.driver == "postgres":
		headers := "jsonb_strip_nulls(" + objects("jsonb_build_object", pairs) + ")"
		if own != "" {
			headers = "coalesce(" + own + "::jsonb, '{}') || " + headers
		}
		p.columns = append(p.columns, headers+" AS headers")
	default: // a merge leaves out nulls
		if own == "" {
			own = "NULL"
		}
		p.columns = append(p.columns, "json_patch(coalesce("+own+", '{}'), "+objects("json_object", pairs)+") AS headers")
	}
}

// addRow adds the event's row as its payload. The row of the parent is a property of it, so no column
// replaces another.
func (p *proposal) addRow(wants string) {
	clear(p.fields) // the payload has the whole row
	own := p.sendable("e")
	for _, c := range own {
		p.sent = append(p.sent, c.Name)
	}
	var more []string
	if p.parent != nil {
		p.join("e", "p", p.parent)
		name := strings.TrimSuffix(strings.TrimSuffix(p.parent.Column, "_id"), "Id")
		for p.t.Column(name) != nil {
			name += "_row"
		}
		columns := p.sendable("p")
		names := make([]string, len(columns))
		for i, c := range columns {
			names[i] = c.Name
		}
		p.sent = append(p.sent, name+" ("+strings.Join(names, ", ")+")")
		object := p.object("p", columns, nil)
		if strings.HasPrefix(p.joins[0], "LEFT") {
			object = "CASE WHEN p." + identifier(p.parent.To) + " IS NOT NULL THEN " + object + " END"
			if p.driver == "sqlite" {
				object = "json(" + object + ")"
			}
		}
		more = append(more, text(name)+", "+object)
	}
	if wanted := p.wanted(wants); wanted != "" {
		more = append(more, wanted)
	}
	row := ""
	if p.driver == "postgres" {
		row = "to_jsonb(e) - 'group_id'"
		for _, c := range p.t.Columns {
			if c.Name != "group_id" && isSecret(p.t, c.Name) {
				row += " - " + text(c.Name)
			}
		}
		if len(more) > 0 {
			row += "\n         || " + objects("jsonb_build_object", more)
		}
	} else {
		row = p.object("e", own, more)
	}
	p.columns = append(p.columns, row+" AS payload")
}

// object returns columns of a row as a JSON object, with more properties. It lists the columns, so that one that the table gets
// later is not sent before somebody has looked at it.
func (p *proposal) object(alias string, columns []introspect.Column, more []string) string {
	var pairs []string
	for _, c := range columns {
		value := alias + "." + identifier(c.Name)
		switch {
		case p.driver == "postgres":
		case c.JSON():
			value = "json(" + value + ")"
		case c.Type == "blob":
			value = "hex(" + value + ")"
		}
		pairs = append(pairs, text(c.Name)+", "+value)
	}
	if p.driver == "postgres" {
		return objects("jsonb_build_object", append(pairs, more...))
	}
	return objects("json_object", append(pairs, more...))
}

// maxPairs is how many pairs a call takes: PostgreSQL functions have at most 100 arguments.
const maxPairs = 50

// objects returns a call that makes a JSON object of pairs of names and values; on PostgreSQL several if there are many.
func objects(function string, pairs []string) string {
	if function == "json_object" { // SQLite takes 1000 arguments
		return function + "(" + list(pairs) + ")"
	}
	var calls []string
	for some := range slices.Chunk(pairs, maxPairs) {
		calls = append(calls, function+"("+list(some)+")")
	}
	if len(calls) == 0 {
		return function + "()"
	}
	return strings.Join(calls, "\n           || ")
}

// list joins parts by commas, in lines of about 80 characters.
func list(parts []string) string {
	var b strings.Builder
	width := 0
	for i, part := range parts {
		switch {
		case i == 0:
		case width+len(part) > 80:
			b.WriteString(",\n           ")
			width = 0
		default:
			b.WriteString(", ")
		}
		b.WriteString(part)
		if width += len(part) + 2; strings.Contains(part, "\n") {
			width = 80
		}
	}
	return b.String()
}

// table returns the table of the alias e or p.
func (p *proposal) table(alias string) *introspect.Table {
	if alias == "e" {
		return p.t
	}
	return p.parent.Table
}

// join adds a joined row. An event whose reference is null, or that refers to no row because no foreign key prevents it, keeps its row.
func (p *proposal) join(from, as string, ref *introspect.Ref) {
	how := "JOIN"
	if c := p.table(from).Column(ref.Column); !c.NotNull || ref.Inferred || len(p.joins) > 0 && strings.HasPrefix(p.joins[0], "LEFT") {
		how = "LEFT JOIN"
	}
	p.joins = append(p.joins, fmt.Sprintf("%s %s %s ON %s.%s = %s.%s",
		how, tableName(p.driver, ref.Table), as, as, identifier(ref.To), from, identifier(ref.Column)))
	if ref.Inferred {
		p.notes = append(p.notes, "No foreign key exists for "+ref.Column+". Its name suggests that it refers to "+ref.Table.FullName()+".")
		p.guesses = append(p.guesses, "joins "+ref.Table.FullName()+" by "+ref.Column+", guessed from the name; no foreign key")
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

// proposal returns the projection that is proposed. sent is without what the request of a single sink leaves out.
func (d *Draft) proposal() proposal {
	p := propose(d.Source.Driver, d.Source.Table, d.wants(), d.hasNATS())
	if all := d.sinks(); len(all) == 1 {
		ignored := all[0].ignored(d.hasUUIDs())
		p.sent = slices.DeleteFunc(p.sent, func(column string) bool { return slices.Contains(ignored, p.fields[column]) })
	}
	return p
}

// Unrequested is what the request of a sink leaves out: columns, each with the field of the event that it is sent as, or fields.
type Unrequested struct {
	// Sink is the name of one of several sinks.
	Sink string
	What []string
}

// Unrequested returns what the requests of the sinks leave out.
func (d *Draft) Unrequested() (all []Unrequested) {
	sinks := d.sinks()
	for i := range sinks {
		one := Unrequested{Sink: sinks[i].name}
		ignored := sinks[i].ignored(d.hasUUIDs())
		if d.Source.IsCustom() && d.Source.Preset == "" {
			p := propose(d.Source.Driver, d.Source.Table, d.wants(), d.hasNATS())
			for _, column := range p.sent {
				if field := p.fields[column]; slices.Contains(ignored, field) {
					one.What = append(one.What, column+" ("+field+")")
				}
			}
		} else {
			one.What = slices.DeleteFunc(ignored, func(field string) bool { return field == "id" || field == "created_at" })
		}
		if one.What != nil {
			all = append(all, one)
		}
	}
	return all
}

// Columns returns the columns whose values the proposed projection sends, those of the event or of the row that it refers to that it does
// not send because their names suggest secrets, and the joins that no foreign key declares. All are nil if nothing is proposed.
func (d *Draft) Columns() (sent, unsent, guesses []string) {
	if !d.Source.IsCustom() || d.Source.Preset != "" {
		return nil, nil, nil
	}
	p := d.proposal()
	return p.sent, p.unsent, p.guesses
}

// Warnings returns the warnings about properties that the API requires.
func (d *Draft) Warnings() []string {
	wants := d.wants()
	switch {
	case d.Source.IsCustom() && d.Source.Preset == "":
		return propose(d.Source.Driver, d.Source.Table, wants, d.hasNATS()).warnings
	case wants == "":
		return nil
	}
	return []string{mustHave(wants)}
}

// mustHave is the warning for payloads that the application writes.
func mustHave(property string) string {
	return "Each payload must have the property " + property + ". An event without it is rejected and becomes a dead letter."
}
