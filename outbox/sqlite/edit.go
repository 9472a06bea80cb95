package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/rowjson"
)

const (
	editedPayloadsSQL = `
SELECT rowid, typeof(payload) = 'blob', payload, headers FROM outbox_dead_letters
WHERE pipeline = ?1 AND event_id = ?2 AND closed_at IS NULL`

	editPayloadSQL = `
UPDATE outbox_dead_letters SET payload = ?2, headers = ?3 WHERE rowid = ?1`

	editedRowsSQL = `
SELECT rowid, FALSE, event_row, headers FROM outbox_dead_letters
WHERE pipeline = ?1 AND event_id = ?2 AND closed_at IS NULL`

	editRowSQL = `
UPDATE outbox_dead_letters SET event_row = ?2, headers = ?3 WHERE rowid = ?1`
)

// edited is a dead letter that is edited.
type edited struct {
	rowid  int64
	isBlob bool
	text   []byte
	// headers stay, unless they are edited.
	headers []byte
}

// RowColumns implements buffer.DeadEditor.
func (b *Buffer) RowColumns(ctx context.Context) (columns []string, err error) {
	err = b.read(ctx, "reading the table's columns", func(tx transaction) error {
		if tx.shape != nil {
			columns = slices.Clone(tx.shape.columns)
		}
		return nil
	})
	return columns, err
}

// EditDead implements buffer.DeadEditor.
func (b *Buffer) EditDead(ctx context.Context, e buffer.DeadEdit) error {
	const doing = "editing a dead letter"
	read, edit := editedPayloadsSQL, editPayloadSQL
	switch isRow := b.config.Custom.Is(); {
	case isRow && (!e.Row || e.Headers):
		return fmt.Errorf("%s: event %d is a row of a custom table; expected its row", doing, e.ID)
	case isRow != e.Row:
		return fmt.Errorf("%s: event %d has no row of a custom table", doing, e.ID)
	case isRow:
		if _, err := rowjson.Decode(string(e.New)); err != nil { // no replay would put it back
			return fmt.Errorf("%s: %w", doing, err)
		}
		read, edit = editedRowsSQL, editRowSQL
	}
	return b.write(ctx, doing, func(tx transaction) error {
		rows, err := tx.rows(ctx, read, b.config.Pipeline, e.ID)
		open, err := db.All(rows, err, func(rows *sql.Rows, d *edited) error { return rows.Scan(&d.rowid, &d.isBlob, &d.text, &d.headers) })
		if err != nil {
			return err
		}
		if len(open) == 0 {
			return buffer.ErrDeadChanged
		}
		for _, d := range open {
			if d.text == nil || !bytes.Equal(d.text, e.Old) {
				return buffer.ErrDeadChanged
			}
			if e.Headers && ((d.headers == nil) != (e.OldHeaders == nil) || !bytes.Equal(d.headers, e.OldHeaders)) {
				return buffer.ErrDeadChanged
			}
		}
		rows, err = tx.rows(ctx, existingSQL, idset.JSONIDs([]int64{e.ID}))
		existing, err := db.Column[int64](rows, err)
		if err == nil && len(existing) > 0 {
			if err = buffer.ErrEventWaits; b.marks() {
				err = fmt.Errorf("%w; it is in table %s: change it there, and replay", err, b.config.Table)
			}
		}
		if err != nil {
			return err
		}
		for _, d := range open {
			var value any = string(e.New)
			if d.isBlob {
				value = e.New
			}
			headers := sql.NullString{String: string(d.headers), Valid: d.headers != nil}
			if e.Headers {
				headers = sql.NullString{String: string(e.NewHeaders), Valid: e.NewHeaders != nil}
			}
			if _, err := tx.exec(ctx, edit, d.rowid, value, headers); err != nil {
				return err
			}
		}
		return nil
	})
}
