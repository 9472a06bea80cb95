package postgres

import (
	"cmp"
	"slices"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// own is how the statements about a table of the user's own find and name its events e.
// They are the same for every such table, but for the words that begin with own_.
type own struct {
	// key is what the projection names an event by. number is the integer that is the
	// event's ID; its name is "" where the key is a uuid that no cursor stands beside.
	key, number ownColumn
	// created is when the event e was inserted, an expression; where nothing in the
	// table says so, it is now.
	created string
	// row is the event e as json, an expression.
	row string
	// insert are the columns that take a value.
	insert []ownColumn
	// topic is what an event is called whose projection does not say: the table's name.
	topic string
	// project is the projection with the rows of the batch for {events}; uses: it has {events}.
	project string
	uses    bool
}

// own is what is used of the table when nothing is missing.
func (f *ownFacts) own(c buffer.CustomTable) *own {
	o := &own{key: f.column(c.ID), created: "clock_timestamp()", topic: f.table.Name}
	if c.Cursor != "" {
		o.number = f.column(c.Cursor)
	} else if o.key.isInteger() {
		o.number = o.key
	}
	switch c := f.column("created_at"); c.oid {
	case pg.OIDTimestamptz:
		o.created = "CASE WHEN isfinite(e." + c.quoted + ") THEN e." + c.quoted + " ELSE clock_timestamp() END"
	case pg.OIDTimestamp:
		o.created = "CASE WHEN isfinite(e." + c.quoted + ") THEN e." + c.quoted + " AT TIME ZONE 'UTC' ELSE clock_timestamp() END"
	}
	o.row = f.asJSON()
	for _, c := range f.columns {
		if !c.generated {
			o.insert = append(o.insert, c)
		}
	}
	return o
}

// numbered tells whether the table has integers for its events. Where it has not, each
// batch draws a block of numbers from outbox_numbers, which stand for its events in the
// relay, and the ledger row has their keys in that order.
func (o *own) numbered() bool { return o.number.name != "" }

// words are the own_ words and what they stand for, by the quoted names of the table and
// of the sequence that numbers are drawn from, and how letters keep a payload.
func (o *own) words(events, numbers string, letterOID uint32) []string {
	keyed, keyUUID := "e."+o.key.quoted, "NULL::uuid"
	if o.key.oid == pg.OIDUUID {
		keyUUID = keyed
	}
	columns, values := o.putBack()
	words := []string{
		"own_uuid", keyUUID,
		"own_created", o.created,
		"own_json", o.row,
		"own_columns", columns,
		"own_values", values,
	}
	if pg.IsJSON(letterOID) {
		words = append(words, "own_payload", "s.payload::json", "own_row", "event_row")
	} else {
		words = append(words, "own_payload", "s.payload::bytea", "own_row", "convert_to(event_row::text, 'UTF8')")
	}
	if !o.numbered() {
		return append(
			words,
			// Every event is beyond every mark.
			"own_id", "1::bigint",
			"own_name", keyed+"::text",
			"own_finds", "uuid[]",
			"own_find", keyed,
			"own_letter", "event_uuid",
			"own_block", "nextval("+pg.Literal(numbers)+") + 1 AS first_id, NULL::bigint AS last_id, array_agg(find ORDER BY created_at, find) AS uuids",
			"own_taken", `LEFT JOIN LATERAL unnest(t.uuids) WITH ORDINALITY u(find, n) ON true
LEFT JOIN `+events+` e ON e.`+o.key.quoted+` = u.find AND e.group_id = t.group_id`,
			"own_number", "CASE WHEN e.group_id IS NOT NULL THEN t.first_id + u.n - 1 END",
			"own_marked", "first_id + array_position(uuids, find) - 1",
			// The numbers that the rows have stay theirs.
			"own_corrected", `first_id = l.first_id, uuids = l.uuids || s.more, last_id = l.first_id + cardinality(l.uuids || s.more) - 1`,
			"own_more", "coalesce(array_agg(find) FILTER (WHERE find <> ALL (uuids)), '{}') AS more",
		)
	}
	name := "NULL::text"
	if o.number.name != o.key.name {
		name = keyed + "::text"
	}
	find := "e." + o.number.quoted
	return append(
		words,
		"own_id", find,
		"own_name", name,
		"own_finds", "bigint[]",
		"own_find", find,
		"own_letter", "event_id",
		"own_block", "min(find)::bigint AS first_id, max(find)::bigint AS last_id, NULL::uuid[] AS uuids",
		"own_taken", "LEFT JOIN "+events+" e ON "+find+" BETWEEN t.first_id AND t.last_id AND e.group_id = t.group_id",
		"own_number", find+"::bigint",
		"own_marked", "find::bigint",
		"own_corrected", "first_id = s.first_id, last_id = s.last_id",
		"own_more", "min(find) AS first_id, max(find) AS last_id",
	)
}

// found is the column that events are found by.
func (o *own) found() ownColumn {
	if o.numbered() {
		return o.number
	}
	return o.key
}

// putBack are the columns of a row r that a replay puts back, and their values: the
// letter c says which event it is.
func (o *own) putBack() (columns, values string) {
	found := o.found().name
	for i, c := range o.insert {
		value := "r." + c.quoted
		switch {
		case c.name == "group_id":
			value = "$12::uuid"
		case c.name == found:
			value = "c.find"
		case c.isText():
			value = "(c.event_row->>" + pg.Literal(c.name) + ")::" + c.kind
		case c.notNull && c.oid == pg.OIDJSONB: // in a row as JSON it is not to be told from NULL
			value = "coalesce(" + value + ", 'null')"
		}
		if i > 0 {
			columns, values = columns+", ", values+", "
		}
		columns, values = columns+c.quoted, values+value
	}
	return columns, values
}

// finds are the events of these ids by what they are found by, an array.
func (o *own) finds(b *buffer.Lease, ids []int64) string {
	if o.numbered() {
		return pg.IDArray(ids)
	}
	keys := make([]uuid.UUID, 0, len(ids))
	all := b.AllEvents()
	for _, id := range ids {
		if e := eventOf(all, id); e != nil {
			keys = append(keys, e.UUID)
		}
	}
	return pg.UUIDArray(keys)
}

// eventOf returns the event of that id; nil if there is none.
func eventOf(events []outbox.Event, id int64) *outbox.Event {
	// Most batches have no gaps.
	if len(events) > 0 {
		if i := id - events[0].ID; i >= 0 && i < int64(len(events)) && events[i].ID == id {
			return &events[i]
		}
	}
	if i, found := slices.BinarySearchFunc(events, id, func(e outbox.Event, id int64) int { return cmp.Compare(e.ID, id) }); found {
		return &events[i]
	}
	return nil
}
