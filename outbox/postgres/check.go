package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox"
)

// lookAtTableSQL says where a table is and what this role may do with it; no row when
// there is no such table.
const lookAtTableSQL = `
SELECT n.nspname::text, c.relname::text, quote_ident(n.nspname) || '.' || quote_ident(c.relname),
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       has_table_privilege(c.oid, 'SELECT'), has_table_privilege(c.oid, 'INSERT'),
       has_table_privilege(c.oid, 'UPDATE'), has_table_privilege(c.oid, 'DELETE'),
       coalesce(pg_get_serial_sequence(quote_ident(n.nspname) || '.' || quote_ident(c.relname), (
         SELECT attname FROM pg_attribute WHERE attrelid = c.oid AND attname = 'id' AND NOT attisdropped)), ''),
       coalesce((SELECT atttypid::bigint FROM pg_attribute WHERE attrelid = c.oid AND attname = 'payload' AND NOT attisdropped), 0),
       c.relkind = 'r' AND c.relpersistence = 'u',
       (SELECT extract(epoch FROM current_setting('deadlock_timeout')::interval) * 1000)::bigint,
       current_user::text, current_database()::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass($1) AND has_schema_privilege(n.oid, 'USAGE')`

const privilegesOfSequenceSQL = `
SELECT has_sequence_privilege($1, 'USAGE')`

const bufferRowSQL = `
INSERT INTO outbox_buffers (buffer, claim) VALUES ($1, 'stamp')
ON CONFLICT (buffer) DO UPDATE SET claim = outbox_buffers.claim
RETURNING claim, floor`

var (
	eventColumns  = []string{"id", "topic", "key", "payload", "headers", "created_at", "group_id"}
	batchColumns  = []string{"group_id", "buffer", "claim", "state", "lease_no", "due_at", "owner", "starts", "attempts", "outages", "events", "first_id", "last_id", "origins", "delivered", "oldest_at", "claimed_at", "error"}
	deadColumns   = []string{"pipeline", "event_id", "topic", "key", "payload", "headers", "created_at", "group_id", "attempts", "error", "died_at", "told_at", "closed_at"}
	bufferColumns = []string{"buffer", "claim", "floor"}
)

// Check is described by buffertest.Buffer. It lists all that is missing, not
// the first of it.
func (b *Buffer) Check(ctx context.Context) error {
	schema, name := splitTable(b.config.Table)
	own := b.config.Schema
	var missing findings

	events, err := b.lookAt(ctx, schema, name)
	if err != nil {
		return b.connectError(err)
	}
	missing.table(events, eventColumns)
	if events.exists && own == "" {
		own = events.schema
	}
	var (
		others = make([]tableFacts, 3)
		wanted = [][]string{batchColumns, deadColumns, bufferColumns}
	)
	for i, name := range []string{"outbox_batches", "outbox_dead_letters", "outbox_buffers"} {
		if others[i], err = b.lookAt(ctx, own, name); err != nil {
			return b.connectError(err)
		}
		missing.table(others[i], wanted[i])
	}
	if others[0].unlogged {
		missing.add("table %s is UNLOGGED, and a crash would empty it; a claim must not be forgotten: ALTER TABLE %s SET LOGGED",
			others[0].quoted, others[0].quoted)
	}
	if events.exists && events.has("id") {
		if err := b.checkSequence(ctx, events, &missing); err != nil {
			return err
		}
	}
	if err := missing.err(); err != nil {
		return err
	}
	t := &table{
		buffer:   events.schema + "." + events.name,
		events:   events.quoted,
		sequence: events.sequence, payloadOID: events.payloadOID,
		lockTimeout: max(time.Millisecond, min(events.deadlockTimeout/2, time.Second)),
		names: strings.NewReplacer(
			"outbox_events", events.quoted, "outbox_batches", others[0].quoted,
			"outbox_dead_letters", others[1].quoted, "outbox_buffers", others[2].quoted),
	}
	return b.register(ctx, t)
}

// register reads the buffer's own row, or writes it the first time.
func (b *Buffer) register(ctx context.Context, t *table) error {
	var (
		claim string
		floor int64
	)
	err := b.transact(ctx, step{sql: t.sql(bufferRowSQL), args: []string{t.buffer}, row: func(v [][]byte) error {
		claim, floor = string(v[0]), int8Of(v[1])
		return nil
	}})
	if err != nil {
		return b.connectError(err)
	}
	if claim != ClaimStamp {
		return otherMode(t, claim)
	}
	if b.table.CompareAndSwap(nil, t) {
		b.marks.startAt(floor)
	}
	return nil
}

func otherMode(t *table, claim string) error {
	return fmt.Errorf("%w: buffer %s is claimed by %q and this relay would claim by %q; two ways on one table lose track of each other: stop the others, let outbox_batches run empty, then UPDATE outbox_buffers SET claim = '%s' WHERE buffer = '%s'",
		outbox.ErrNotReady, t.buffer, claim, ClaimStamp, ClaimStamp, t.buffer)
}

type tableFacts struct {
	wanted, schema, name, quoted               string
	exists, selects, inserts, updates, deletes bool
	unlogged                                   bool
	columns                                    []string
	sequence                                   string
	payloadOID                                 uint32
	deadlockTimeout                            time.Duration
	role, database                             string
}

func (f *tableFacts) has(column string) bool {
	for _, c := range f.columns {
		if c == column {
			return true
		}
	}
	return false
}

func (b *Buffer) lookAt(ctx context.Context, schema, name string) (tableFacts, error) {
	f := tableFacts{wanted: ident(schema, name)}
	err := b.roundTrip(ctx, []step{{sql: lookAtTableSQL, args: []string{f.wanted}, row: func(v [][]byte) error {
		f.exists = true
		f.schema, f.name, f.quoted = string(v[0]), string(v[1]), string(v[2])
		arrayOf(v[3], func(c []byte) { f.columns = append(f.columns, string(c)) })
		f.selects, f.inserts, f.updates, f.deletes = isTrue(v[4]), isTrue(v[5]), isTrue(v[6]), isTrue(v[7])
		f.sequence = string(v[8])
		f.payloadOID = uint32(int8Of(v[9])) //nolint:gosec // an oid
		f.unlogged = isTrue(v[10])
		f.deadlockTimeout = time.Duration(int8Of(v[11])) * time.Millisecond
		f.role, f.database = string(v[12]), string(v[13])
		return nil
	}}})
	return f, err
}

func isTrue(v []byte) bool { return len(v) == 1 && v[0] == 1 }

func (b *Buffer) checkSequence(ctx context.Context, events tableFacts, missing *findings) error {
	if events.sequence == "" {
		missing.add("column id of table %s has no sequence of its own; ids must come from the database and never twice: ALTER TABLE %s ALTER id ADD GENERATED ALWAYS AS IDENTITY",
			events.quoted, events.quoted)
		return nil
	}
	return b.connectError(b.roundTrip(ctx, []step{{
		sql: privilegesOfSequenceSQL, args: []string{events.sequence},
		row: func(v [][]byte) error {
			if !isTrue(v[0]) {
				missing.add("role %s may not use sequence %s: GRANT USAGE ON SEQUENCE %s TO %s",
					events.role, events.sequence, events.sequence, quote(events.role))
			}
			return nil
		},
	}}))
}

// findings collects what is missing.
type findings []string

func (f *findings) add(format string, a ...any) { *f = append(*f, fmt.Sprintf(format, a...)) }

func (f *findings) table(t tableFacts, columns []string) {
	if !t.exists {
		f.add("table %s does not exist (or its schema may not be used): relay migrate -c relay.yaml", t.wanted)
		return
	}
	for _, c := range columns {
		if !t.has(c) {
			f.add("table %s has no column %s: relay migrate -c relay.yaml", t.quoted, c)
		}
	}
	var grants []string
	for _, g := range []struct {
		may  bool
		name string
	}{{t.selects, "SELECT"}, {t.inserts, "INSERT"}, {t.updates, "UPDATE"}, {t.deletes, "DELETE"}} {
		if !g.may {
			grants = append(grants, g.name)
		}
	}
	if len(grants) > 0 {
		list := strings.Join(grants, ", ")
		f.add("role %s may not %s on table %s: GRANT %s ON %s TO %s", t.role, list, t.quoted, list, t.quoted, quote(t.role))
	}
}

func (f findings) err() error {
	if len(f) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", outbox.ErrNotReady, strings.Join(f, "; "))
}

// explain says what was being done. When the database answers that something is
// missing, Check says what, and with which command it comes.
func (b *Buffer) explain(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	switch code(err) {
	case codeNoTable, codeNoColumn, codeNoPrivilege, codeNoSchema:
		if checkErr := b.Check(ctx); errors.Is(checkErr, outbox.ErrNotReady) {
			err = checkErr
		}
	}
	return fmt.Errorf("%s: %w", doing, b.connectError(err))
}

// connectError adds what mends a connection that cannot be made. pgx keeps the
// password out of its errors.
func (b *Buffer) connectError(err error) error {
	switch code(err) {
	case codeBadAuth, codeBadAuthMethod:
		return fmt.Errorf("%w: the database refuses the role: look at user and password in source.url, and at pg_hba.conf: %w", outbox.ErrNotReady, err)
	case codeNoDatabase:
		return fmt.Errorf("%w: there is no such database: look at source.url, or createdb: %w", outbox.ErrNotReady, err)
	}
	if connectErr, ok := errors.AsType[*pgconn.ConnectError](err); ok && connectErr.Config != nil {
		return fmt.Errorf("cannot reach PostgreSQL at %s:%d: %w", connectErr.Config.Host, connectErr.Config.Port, err)
	}
	return err
}
