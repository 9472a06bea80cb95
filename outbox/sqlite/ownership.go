package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/ownership"
	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

const (
	ownerSQL = `
SELECT coalesce(pipeline, ''), coalesce(owned_since, '') FROM outbox_buffers WHERE buffer = ?1`

	ownSQL = `
UPDATE outbox_buffers SET pipeline = ?2, owned_since = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') WHERE buffer = ?1`
)

// owner returns the pipeline that owns the buffer, "" if none does. The error is an *ownership.Error if it is another one.
func (b *Buffer) owner(ctx context.Context, tx transaction) (owner string, err error) {
	var since string
	err = tx.row(ctx, ownerSQL, b.config.Table).Scan(&owner, &since)
	if errors.Is(err, sql.ErrNoRows) { // see storedMode
		return "", nil
	}
	if err != nil || owner == "" || owner == b.config.Pipeline {
		return owner, err
	}
	at, _ := time.Parse(db.TimeFormat, since) // for people to read
	return owner, &ownership.Error{Buffer: b.config.Table, Owner: owner, Pipeline: b.config.Pipeline, Since: at}
}

// own makes the pipeline the buffer's owner if it has none.
func (b *Buffer) own(ctx context.Context, tx transaction) error {
	owner, err := b.owner(ctx, tx)
	if err == nil && owner == "" {
		_, err = tx.exec(ctx, ownSQL, b.config.Table, b.config.Pipeline)
	}
	return err
}

const (
	renameOwnerSQL = `
UPDATE outbox_buffers SET pipeline = ?2, owned_since = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') WHERE buffer = ?1 AND pipeline = ?3`

	// Closed ones too. The letters of a pipeline that owns another buffer stay its own, and so does one whose event died
	// under both names.
	renameLettersSQL = `
UPDATE outbox_dead_letters SET pipeline = ?1
WHERE pipeline = ?2 AND NOT EXISTS (SELECT 1 FROM outbox_buffers WHERE pipeline = ?2)
  AND NOT EXISTS (SELECT 1 FROM outbox_dead_letters AS o
                  WHERE o.pipeline = ?1 AND o.event_id = outbox_dead_letters.event_id AND o.group_id = outbox_dead_letters.group_id)`
)

// Rename implements buffer.DeadLetters.
func (b *Buffer) Rename(ctx context.Context, from string) (r buffer.Renamed, err error) {
	err = b.write(ctx, "renaming the pipeline", func(tx transaction) error {
		owned, err := tx.exec(ctx, renameOwnerSQL, b.config.Table, b.config.Pipeline, from)
		if err != nil {
			return err
		}
		owner, err := b.owner(ctx, tx)
		if _, isOther := errors.AsType[*ownership.Error](err); err != nil && !isOther {
			return err
		}
		r.Owner, r.Owns = owned > 0, owner == b.config.Pipeline
		r.Letters, err = tx.exec(ctx, renameLettersSQL, b.config.Pipeline, from)
		return err
	})
	return r, err
}

// No pipeline has a name that owns no buffer of this file.
const orphanedSQL = `
SELECT pipeline, count(*) FROM outbox_dead_letters AS d
WHERE closed_at IS NULL AND pipeline <> ?1 AND NOT EXISTS (SELECT 1 FROM outbox_buffers AS b WHERE b.pipeline = d.pipeline)
GROUP BY pipeline ORDER BY pipeline`

// orphaned returns a finding for each name that open dead letters have and no pipeline.
func (b *Buffer) orphaned(ctx context.Context) (found []buffer.Finding, err error) {
	rows, err := b.db.QueryContext(ctx, orphanedSQL, b.config.Pipeline)
	return db.All(rows, err, func(rows *sql.Rows, f *buffer.Finding) error {
		var (
			name    string
			letters int64
		)
		err := rows.Scan(&name, &letters)
		*f = ownership.OrphanedLetters(name, letters)
		return err
	})
}

// Other tables with all columns of the buffer that no pipeline owns, such as the buffer itself before another table got its name. Archives are none.
const replacedSQL = `
SELECT name, instr(lower(name), lower(?1)) > 0 AS named FROM sqlite_schema AS s
WHERE type = 'table' AND name <> ?1 COLLATE NOCASE AND name NOT LIKE 'sqlite\_%' ESCAPE '\'
  AND name NOT IN ('outbox_batches', 'outbox_dead_letters', 'outbox_buffers', 'outbox_sinks', 'outbox_relays', 'outbox_rates', 'outbox_versions')
  AND EXISTS (SELECT 1 FROM pragma_table_info(s.name) AS i WHERE lower(i.name) = 'group_id')
  AND NOT EXISTS (SELECT 1 FROM pragma_table_info(s.name) AS i WHERE lower(i.name) = 'archived_at')
  AND NOT EXISTS (SELECT 1 FROM pragma_table_info(?1) AS c WHERE lower(c.name) NOT IN (SELECT lower(i.name) FROM pragma_table_info(s.name) AS i))
  AND NOT EXISTS (SELECT 1 FROM outbox_buffers AS b WHERE b.buffer = s.name COLLATE NOCASE AND b.pipeline IS NOT NULL)
ORDER BY named DESC, name LIMIT 10`

// AlsoOwned returns a finding about each table that may have been the buffer before another table got its name: rows in it have a group_id. Of a table of the
// relay's own, whose claims may write none, the name says it, too.
func (b *Buffer) AlsoOwned(ctx context.Context) (found []buffer.Finding, err error) {
	type candidate struct {
		table string
		named bool
	}
	rows, err := b.db.QueryContext(ctx, replacedSQL, b.config.Table)
	like, err := db.All(rows, err, func(rows *sql.Rows, c *candidate) error { return rows.Scan(&c.table, &c.named) })
	if err != nil {
		return nil, b.explain(ctx, "looking for a table that had the buffer's name", err)
	}
	for _, c := range like {
		var stamped, looked int64
		err := b.db.QueryRowContext(ctx, "SELECT count(group_id), count(*) FROM (SELECT group_id FROM "+db.Quote(c.table)+" LIMIT ?1)", ownership.Looked).Scan(&stamped, &looked)
		if err != nil {
			return nil, b.explain(ctx, "looking for a table that had the buffer's name", err)
		}
		if stamped > 0 || c.named && looked > 0 && !b.config.Custom.Is() {
			found = append(found, ownership.Replaced(db.Quote(c.table), db.Quote(b.config.Table), looked, stamped))
		}
	}
	return found, nil
}

// Warnings returns dead letters that nobody looks after, a sentence each.
func (b *Buffer) Warnings(ctx context.Context) (warnings []string) {
	found, err := b.orphaned(ctx)
	if err != nil {
		return []string{b.explain(ctx, "looking for dead letters of other names", err).Error()}
	}
	if replaced, err := b.AlsoOwned(ctx); err == nil { // doctor says why not
		found = append(found, replaced...)
	}
	if unsent, err := b.UnsentColumns(ctx); err == nil && unsent != nil && !b.config.Custom.Is() { // it is looked at again later
		found = append(found, projection.UnsentEvents(unsent, db.Quote(b.config.Table), b.config.Table))
	}
	if ignored, err := b.IgnoredColumns(ctx); err == nil && ignored != nil {
		found = append(found, projection.Unknown(ignored))
	}
	for _, f := range found {
		warnings = append(warnings, f.Text+" ("+f.Fix+")")
	}
	return warnings
}

// owner adds whether another pipeline owns the buffer, and dead letters under names that no pipeline has.
func (d *diagnosis) owner(ctx context.Context) {
	const about = "owner"
	err := d.b.begin(ctx, d.b.db, readOnly, func(tx transaction) error {
		_, err := d.b.owner(ctx, tx)
		return err
	})
	if conflict, ok := errors.AsType[*ownership.Error](err); ok {
		d.problem(about, conflict.Text(), conflict.Fix())
	} else if !d.failed(about, err) {
		d.ok(about, "no other pipeline owns the buffer")
	}
	found, err := d.b.orphaned(ctx)
	if !d.failed("dead letters", err) {
		d.findings = append(d.findings, found...)
	}
	replaced, err := d.b.AlsoOwned(ctx)
	if !d.failed(about, err) {
		d.findings = append(d.findings, replaced...)
	}
}
