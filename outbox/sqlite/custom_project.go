package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/rowjson"
)

// project fills in what the projection returns for the batch's events, in one snapshot after the claim has
// committed. If it fails, the batch is leased all the same and waits for a retry.
//
// A batch that is marked delivered needs its content only for the archive.
func (c *customTable) project(ctx context.Context, batch *buffer.Lease, limit time.Duration) {
	batch.Projected = true
	if len(batch.Events) == 0 || batch.DeliveryRecorded() && c.b.config.Archive == "" {
		return
	}
	if !batch.DeliveryRecorded() && batch.KillsReader() {
		batch.FailRead(buffer.ErrKillsReader, 0)
		return
	}
	// The lease is not renewed before the batch is returned.
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var (
		read    int
		changed []int64
	)
	err := c.b.begin(limited, c.reads, readOnly, func(tx transaction) (err error) {
		if c.b.marks() && !batch.DeliveryRecorded() {
			if changed, err = c.changed(limited, tx, batch); err != nil {
				return err
			}
		}
		read, err = c.projectIn(limited, tx, batch)
		return err
	})
	if err == nil && len(changed) > 0 { // before they are sent
		err = c.noteChanged(limited, changed)
	}
	switch {
	case err == nil:
	case errors.Is(err, buffer.ErrTooLarge) && batch.DeliveryRecorded(): // the rows are archived
	case errors.Is(err, buffer.ErrTooLarge):
		batch.FailRead(buffer.ErrTooLarge, read)
	case ctx.Err() != nil:
		batch.FailProjection(projection.Unavailable(err))
	case limited.Err() != nil:
		batch.FailProjection(projection.TookTooLong(limit))
	default:
		batch.FailProjection(classify(err))
	}
}

// An id that is none of the claim's.
const foreignSQL = `
SELECT value FROM json_each(?1)
WHERE value NOT IN (SELECT custom_id FROM custom_events WHERE custom_id IN (SELECT value FROM json_each(?1)) AND group_id IS ?2) LIMIT 1`

// projectIn projects in a transaction that sees the batch's stamp, and returns how many rows it read. If it fails the
// events are unchanged.
func (c *customTable) projectIn(ctx context.Context, tx transaction, batch *buffer.Lease) (read int, err error) {
	group, only := batch.GroupID, []int64(nil)
	if batch.ClaimID != uuid.Nil { // other batches may have events with this stamp
		group, only = batch.ClaimID, batch.IDs()
	}
	project, _ := c.projectOf(tx.shape, group, batch.FirstID, batch.LastID, only)
	stamp := tx.shape.stampOf(group)
	statement, err := projectionStatement(ctx, tx, project, stamp)
	if err != nil {
		return 0, err
	}
	rows, err := tx.tx.QueryContext(ctx, statement, stamp)
	if err != nil {
		return 0, runError(err)
	}
	p := projecting{events: slices.Clone(batch.Events), isJSON: true, shared: only != nil}
	p.rows = projection.NewRows(p.events, c.b.config.Table)
	if err := p.read(rows); err != nil {
		return p.fitted, err
	}
	if len(p.others) > 0 {
		var foreign int64
		switch err := tx.row(ctx, foreignSQL, idset.JSONIDs(p.others), stamp).Scan(&foreign); {
		case err == nil:
			return p.fitted, projection.ForeignID(strconv.FormatInt(foreign, 10), "?")
		case !errors.Is(err, sql.ErrNoRows):
			return p.fitted, err
		}
	}
	batch.PayloadIsJSON = p.isJSON
	return p.fitted, p.finish(ctx, tx, batch, extent{stamp: stamp, first: batch.FirstID, last: batch.LastID}, c.b.config.Table)
}

// returned returns the names of the columns that a projection returns.
func returned(ctx context.Context, tx transaction, project string, args ...any) ([]string, error) {
	rows, err := tx.tx.QueryContext(ctx, "SELECT * FROM (\n"+project+"\n) LIMIT 0", args...)
	if err != nil {
		return nil, projection.Failed(err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	if err := rows.Err(); err != nil {
		return nil, projection.Failed(err)
	}
	return names, nil
}

// projectionStatement returns a statement whose columns are those of projection.Names, in order. The
// projection is the application's, and so are the tables that it reads: they may change at any time.
func projectionStatement(ctx context.Context, tx transaction, project string, args ...any) (string, error) {
	names, err := returned(ctx, tx, project, args...)
	if err != nil {
		return "", err
	}
	within := " FROM (\n" + project + "\n)"
	columns, err := projection.Find(names, strings.EqualFold)
	if err != nil {
		return "", err
	}
	list := make([]string, len(columns))
	for i, at := range columns {
		switch {
		case at < 0:
			list[i] = "NULL"
		case i == projection.CreatedAt:
			list[i] = buffer.SQLiteTime(db.Quote(names[at]))
		default:
			list[i] = "+" + db.Quote(names[at]) // see shape.values
		}
	}
	return "SELECT " + strings.Join(list, ", ") + within, nil
}

// projecting reads what the projection returns.
type projecting struct {
	events []outbox.Event // in id order
	rows   *projection.Rows
	isJSON bool
	// shared: the rows may be those of other batches too, whose ids are others.
	shared bool
	others []int64
	size   int // bytes that were read, of so many rows
	fitted int
}

// fit counts the bytes of a row. A single event always fits.
func (p *projecting) fit(n int) error {
	if p.size += n; p.size > buffer.MaxBytes && len(p.events) > 1 && p.fitted > 0 {
		return buffer.ErrTooLarge
	}
	p.fitted++
	return nil
}

// read reads and closes rows.
func (p *projecting) read(rows *sql.Rows) error {
	defer rows.Close()
	for rows.Next() {
		var (
			id, payload, topic, key, headers any
			created                          sql.NullString
		)
		if err := rows.Scan(&id, &payload, &topic, &key, &headers, &created); err != nil {
			return runError(err)
		}
		if id == nil {
			return projection.ErrNullID
		}
		n, ok := id.(int64)
		if !ok {
			return projection.ForeignID(describe(id), "?")
		}
		i, found := p.rows.Find(n)
		if !found && p.shared {
			p.others = append(p.others, n)
			continue
		}
		if !found {
			return projection.ForeignID(strconv.FormatInt(n, 10), "?")
		}
		var row projection.Row
		row.CreatedAt, _ = time.Parse(db.TimeFormat, created.String)
		assign(&row, payload, topic, key, headers)
		size := len(row.Payload) + len(row.Headers)
		if row.Topic != nil {
			size += len(*row.Topic)
		}
		if row.Key != nil {
			size += len(*row.Key)
		}
		if err := p.fit(size); err != nil {
			return err
		}
		p.rows.Add(i, &row)
		p.isJSON = p.isJSON && row.Kind != projection.Bytes && utf8.Valid(row.Payload)
	}
	if err := rows.Err(); err != nil {
		return runError(err)
	}
	return nil
}

// assign converts what SQLite returns for one event.
func assign(row *projection.Row, payload, topic, key, headers any) {
	row.Kind = projection.Text
	switch v := payload.(type) {
	case nil:
	case []byte:
		row.Payload, row.Kind = append([]byte{}, v...), projection.Bytes
	case string:
		row.Payload = []byte(v)
	case int64: // in a column of a type that SQLite does not know, JSON numbers become numbers
		row.Payload = strconv.AppendInt(nil, v, 10)
	case float64:
		row.Payload = rowjson.AppendReal(nil, v)
	}
	switch v := topic.(type) {
	case nil:
	case string:
		row.Topic = &v
	default:
		row.Err = projection.WrongType(projection.Topic, describe(topic), "text")
	}
	switch v := key.(type) {
	case nil:
	case string:
		row.Key = &v
	case int64:
		text := strconv.FormatInt(v, 10)
		row.Key = &text
	default:
		row.Err = projection.WrongType(projection.Key, describe(key), "text")
	}
	switch v := headers.(type) {
	case nil:
	case string:
		row.Headers = []byte(v)
	default:
		row.Err = projection.WrongType(projection.Headers, describe(headers), "a JSON object of strings")
	}
}

// describe returns a value for an error: its type, and itself if it is short and harmless.
func describe(value any) string {
	switch v := value.(type) {
	case string:
		return fmt.Sprintf("%.20q (text)", v)
	case []byte:
		return "a blob"
	}
	return fmt.Sprint(value)
}

// finish splits the events into those that can be sent and the rejected ones. An event for which the
// projection returned no row gets its row as payload; if that was deleted, the event is left out.
func (p *projecting) finish(ctx context.Context, tx transaction, batch *buffer.Lease, which extent, table string) error {
	var unprojected []customRow
	if missing := p.rows.MissingIDs(); len(missing) > 0 {
		which.ids = idsArg(missing)
		var err error
		if unprojected, err = tx.customRows(ctx, which, p.fit); err != nil {
			return err
		}
	}
	batch.Events = p.events[:0]
	for i, e := range p.events {
		err := p.rows.Err(i)
		if p.rows.Missing(i) {
			if len(unprojected) == 0 || unprojected[0].id != e.ID {
				continue
			}
			e.Topic, e.Payload, err = table, []byte(unprojected[0].text), buffer.ErrNotProjected
			unprojected = unprojected[1:]
		}
		if err != nil {
			batch.Rejected = append(batch.Rejected, buffer.Rejection{Event: e, Err: err})
			continue
		}
		batch.Events = append(batch.Events, e)
	}
	return nil
}

// runError classifies the error of a projection that was prepared in the same snapshot. SQLite has one code
// for a wrong statement and for a wrong value, and here only a value can be wrong: malformed JSON, an integer
// overflow, a text that is too long.
func runError(err error) error {
	switch db.Code(err) {
	case sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH:
		return projection.EventData(projection.Failed(err))
	}
	return projection.Failed(err)
}

// classify returns err as a batch's ProjectErr.
func classify(err error) error {
	if errors.Is(err, buffer.ErrEventData) {
		return err
	}
	if errors.Is(err, fs.ErrNotExist) { // see db.Follower
		return projection.Unavailable(err)
	}
	switch db.Code(err) {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL,
		sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return projection.Unavailable(err)
	}
	return projection.OneLine(err)
}
