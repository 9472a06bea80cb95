package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// project fills in what the projection says of the batch's events: one snapshot, for a
// batch that was committed. Whatever goes wrong is in batch.ProjectErr, or in the event's
// if one event's row shows it: the batch is leased, and whoever has it lets it wait.
//
// A batch that is delivered already needs its content for the archive alone.
func (b *Buffer) project(ctx context.Context, batch *buffer.Lease, lease time.Duration) {
	batch.Projected = true
	if len(batch.Events) == 0 || batch.DeliveryRecorded() && b.config.Archive == "" {
		return
	}
	// Nobody renews the lease before the batch is returned.
	limited, cancel := context.WithTimeout(ctx, lease/2)
	defer cancel()
	err := b.beginOn(limited, b.own.reads, &sql.TxOptions{ReadOnly: true}, func(tx transaction) error {
		return b.projectIn(limited, tx, batch)
	})
	switch {
	case err == nil:
	case ctx.Err() != nil:
		batch.ProjectErr = fmt.Errorf("%w: %w", buffer.ErrDatabaseUnavailable, err)
	case limited.Err() != nil:
		batch.ProjectErr = fmt.Errorf("the projection takes longer than half a lease, %v: make it faster, by an index perhaps, or lease longer", lease/2)
	default:
		batch.ProjectErr = blamed(err)
	}
}

// projectIn does it in a transaction that sees the batch's stamp. When it fails the
// events are as they were.
func (b *Buffer) projectIn(ctx context.Context, tx transaction, batch *buffer.Lease) error {
	stamp := tx.shape.stamp(batch.GroupID)
	statement, err := b.projecting(ctx, tx, batch)
	if err != nil {
		return err
	}
	rows, err := tx.tx.QueryContext(ctx, statement, stamp)
	if err != nil {
		return runErr(err)
	}
	p := projection{topic: b.config.Table, events: slices.Clone(batch.Events), isJSON: true}
	if err := p.read(rows); err != nil {
		return err
	}
	if slices.Contains(p.seen, false) {
		which := extent{stamp: stamp, first: batch.FirstID, last: batch.LastID}
		if err := p.fillIn(ctx, tx, which); err != nil {
			return err
		}
	}
	batch.Events, batch.PayloadIsJSON = p.events, p.isJSON
	return nil
}

// within makes the user's SELECT a part of ours. So it is one, and one only.
func within(project string) string { return "(\n" + ending(project) + "\n)" }

// ending is the project without the semicolons and comments that it ends in. Quotes are
// closed as they were opened, and a quote in quotes is there twice.
func ending(project string) string {
	end := 0
	for i := 0; i < len(project); {
		rest, n := project[i:], 1
		switch closing := closes(rest); {
		case closing != "":
			comment := closing == "\n" || closing == "*/"
			from := 1
			if comment {
				from = 2
			}
			if n = strings.Index(rest[from:], closing); n < 0 {
				n = len(rest)
			} else {
				n += from + len(closing)
			}
			if !comment {
				end = i + n
			}
		case !strings.ContainsRune("; \t\r\n\f", rune(rest[0])):
			end = i + 1
		}
		i += n
	}
	return project[:end]
}

// closes is what ends the quotes or the comment that the text begins with, "" if it
// begins with neither.
func closes(text string) string {
	switch {
	case strings.HasPrefix(text, "--"):
		return "\n"
	case strings.HasPrefix(text, "/*"):
		return "*/"
	case text[0] == '[':
		return "]"
	case strings.ContainsRune("'\"`", rune(text[0])):
		return text[:1]
	}
	return ""
}

// projected are the columns that the projection returns, by what they are for; the names
// are the projection's own, and those that it does not return are "".
type projected struct{ id, topic, key, payload, headers, createdAt string }

// projected asks for the columns of the projection, which is the user's, and so are the
// tables it reads: they may change at any time.
func (b *Buffer) projected(ctx context.Context, tx transaction, args ...any) (p projected, err error) {
	rows, err := tx.tx.QueryContext(ctx, "SELECT * FROM "+within(b.config.Own.Project)+" LIMIT 0", args...)
	if err != nil {
		return p, projectionErr(err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return p, err
	}
	for _, name := range names {
		switch strings.ToLower(name) {
		case "id":
			p.id = name
		case "topic":
			p.topic = name
		case "key":
			p.key = name
		case "payload":
			p.payload = name
		case "headers":
			p.headers = name
		case "created_at":
			p.createdAt = name
		}
	}
	if err := rows.Err(); err != nil {
		return p, projectionErr(err)
	}
	switch {
	case p.id == "":
		return p, fmt.Errorf("the projection returns no column id, which says whose row it is: it returns %s", strings.Join(names, ", "))
	case p.payload == "":
		return p, fmt.Errorf("the projection returns no column payload, which is what is sent: it returns %s", strings.Join(names, ", "))
	}
	return p, nil
}

// statement asks for them in order.
func (p projected) statement(project string) string {
	value := func(column string) string {
		if column == "" {
			return "NULL"
		}
		return "+" + quote(column)
	}
	created := "NULL"
	if p.createdAt != "" {
		created = timeOf(quote(p.createdAt))
	}
	return "SELECT " + strings.Join([]string{value(p.id), value(p.topic), value(p.key), value(p.payload), value(p.headers), created}, ", ") +
		" FROM " + within(project)
}

// projection puts what the projection returns into the events.
type projection struct {
	topic  string         // of events that have none
	events []outbox.Event // in id order
	seen   []bool
	next   int // mostly the event that the next row is of
	isJSON bool
}

// read reads and closes rows.
func (p *projection) read(rows *sql.Rows) error {
	defer rows.Close()
	p.seen = make([]bool, len(p.events))
	for rows.Next() {
		var (
			id, topic, key, payload, headers any
			created                          sql.NullString
		)
		if err := rows.Scan(&id, &topic, &key, &payload, &headers, &created); err != nil {
			return runErr(err)
		}
		i, err := p.find(id)
		if err != nil {
			return err
		}
		e := &p.events[i]
		switch {
		case e.ProjectErr != nil: // the first thing that is wrong will do
			continue
		case p.seen[i]:
			err = fmt.Errorf("the projection returns event %d twice, one row an event was expected", e.ID)
		default:
			p.seen[i] = true
			if err = p.fill(e, topic, key, payload, headers); err != nil {
				err = fmt.Errorf("the projection of event %d: %w", e.ID, err)
			}
		}
		if err != nil {
			*e = outbox.Event{ID: e.ID, Topic: p.topic, CreatedAt: e.CreatedAt, ProjectErr: err}
			continue
		}
		if at, err := time.Parse(timeFormat, created.String); created.Valid && err == nil {
			e.CreatedAt = at
		}
	}
	if err := rows.Err(); err != nil {
		return runErr(err)
	}
	return nil
}

// find is where the event stands that a row is of.
func (p *projection) find(id any) (int, error) {
	if id == nil {
		return 0, errors.New("the projection returns a row whose id is NULL: the event's key was expected")
	}
	n, is := id.(int64)
	if !is {
		return 0, fmt.Errorf("the projection returns the id %s, the event's key was expected, an integer", shown(id))
	}
	i, found := p.next, true
	if i >= len(p.events) || p.events[i].ID != n {
		i, found = slices.BinarySearchFunc(p.events, n, byID)
	}
	if !found {
		return 0, fmt.Errorf("the projection returns event %d, which is not in the batch: it has to say WHERE group_id = ?", n)
	}
	p.next = i + 1
	return i, nil
}

func (p *projection) fill(e *outbox.Event, topic, key, payload, headers any) error {
	switch v := topic.(type) {
	case nil:
		e.Topic = p.topic
	case string:
		if e.Topic = v; v == "" {
			return errors.New("its topic is empty, a name was expected")
		}
	default:
		return fmt.Errorf("its topic is %s, text was expected", shown(topic))
	}
	switch v := key.(type) {
	case nil:
	case string:
		e.Key = &v
	case int64:
		text := strconv.FormatInt(v, 10)
		e.Key = &text
	default:
		return fmt.Errorf("its key is %s, text was expected", shown(key))
	}
	switch v := headers.(type) {
	case nil:
	case string:
		if e.Headers = outbox.Headers(v); !strings.HasPrefix(strings.TrimSpace(v), "{") || !json.Valid(e.Headers) {
			return errors.New("its headers are not a JSON object of strings")
		}
	default:
		return fmt.Errorf("its headers are %s, a JSON object of strings was expected", shown(headers))
	}
	switch v := payload.(type) {
	case nil:
		return errors.New("its payload is NULL, JSON or a blob was expected")
	case []byte:
		e.Payload, p.isJSON = append([]byte{}, v...), false
		return nil
	case string:
		e.Payload = []byte(v)
	case int64: // in a column of a type that SQLite does not know, JSON numbers become numbers
		e.Payload = strconv.AppendInt(nil, v, 10)
	case float64:
		e.Payload = appendReal(nil, v)
	}
	if !json.Valid(e.Payload) {
		return errors.New("its payload is text that is no JSON: return JSON, or opaque bytes as a blob")
	}
	return nil
}

// shown is a value for an error: what kind it is, and if it is short and harmless what.
func shown(value any) string {
	switch v := value.(type) {
	case string:
		return fmt.Sprintf("%.20q (text)", v)
	case []byte:
		return "a blob"
	}
	return fmt.Sprint(value)
}

// fillIn says of the events that the projection left out what their rows are. Those that
// somebody deleted are no events any more.
func (p *projection) fillIn(ctx context.Context, tx transaction, which extent) error {
	var missing []int64
	for i, seen := range p.seen {
		if !seen {
			missing = append(missing, p.events[i].ID)
		}
	}
	var err error
	if which.ids, err = idsText(missing); err != nil {
		return err
	}
	rows, err := tx.rowsOf(ctx, which)
	if err != nil {
		return err
	}
	left := p.events[:0]
	for i, e := range p.events {
		if !p.seen[i] {
			if len(rows) == 0 || rows[0].id != e.ID {
				continue
			}
			e.NoProjection, e.Topic, e.Payload = true, p.topic, []byte(rows[0].text)
			rows = rows[1:]
		}
		left = append(left, e)
	}
	p.events = left
	return nil
}
