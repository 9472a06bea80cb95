package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/notready"
	"github.com/outboxrelay/relay/outbox/postgres/internal/backlog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/claim"
	"github.com/outboxrelay/relay/outbox/postgres/internal/custom"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/migrate"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

const privilegesOfSequenceSQL = `
SELECT has_sequence_privilege($1, 'USAGE')`

// Check implements buffer.Inspector. It lists everything that is missing, not only the first.
func (b *Buffer) Check(ctx context.Context) error {
	schema, name := b.tableName()
	own := b.config.Schema
	var missing catalog.Findings
	tables, err := migrate.Definitions()
	if err != nil {
		return err
	}
	events, err := catalog.Find(ctx, b.db, schema, name)
	if err != nil {
		return b.db.ConnectError(err)
	}
	if events.Ambiguous != nil { // the rest depends on which one is meant
		return events.Ambiguous.Err()
	}
	var gone *buffer.Finding
	if !events.Exists && events.ForbiddenSchema == "" {
		if err := b.checkSchemas(ctx); err != nil {
			return err
		}
		if gone, err = b.gone(ctx, events, schema, name); err != nil {
			return b.db.ConnectError(err)
		}
	}
	var facts custom.Facts
	if b.config.Custom.Is() {
		if facts, err = custom.Read(ctx, b.db, events); err == nil {
			err = custom.Check(ctx, b.db, &facts, custom.Config{CustomTable: b.config.Custom, Schema: b.config.Schema, Gone: gone, Archive: b.config.Archive != ""}, &missing)
		}
		if err != nil {
			return b.db.ConnectError(err)
		}
	} else {
		if err := b.checkApplication(ctx, events, tables["outbox_events"].Columns); err != nil {
			return err
		}
		checkEvents(events, gone, tables["outbox_events"].Columns, &missing)
	}
	switch {
	case own != "":
	case events.Exists:
		own = events.Schema
	case events.ForbiddenSchema != "":
		own = schema
	}
	others := make([]catalog.Table, 4)
	for i, name := range []string{"outbox_batches", "outbox_dead_letters", "outbox_buffers", "outbox_relays"} {
		if others[i], err = catalog.Find(ctx, b.db, own, name); err != nil {
			return b.db.ConnectError(err)
		}
		if !(migrate.Config{Table: b.config.Table, Schema: own}).AddObsolete(&missing, name, others[i].Quoted, others[i].Columns) {
			missing.AddMissing(others[i], tables[name].Columns, catalog.CanAdd, all...)
			if name == "outbox_dead_letters" {
				missing.AddJSONB(others[i], "payload", "headers", "event_row")
			}
		}
	}
	if b.config.Sinks != nil {
		sinks, err := catalog.Find(ctx, b.db, own, "outbox_sinks")
		if err != nil {
			return b.db.ConnectError(err)
		}
		missing.AddMissing(sinks, tables["outbox_sinks"].Columns, catalog.CanAdd, all...)
	}
	if b.config.SharedRate {
		rates, err := catalog.Find(ctx, b.db, own, "outbox_rates")
		if err != nil {
			return b.db.ConnectError(err)
		}
		missing.AddMissing(rates, tables["outbox_rates"].Columns, catalog.CanAdd, "SELECT", "INSERT", "UPDATE")
	}
	var archive catalog.Table
	if b.config.Archive != "" {
		payload, like := "json", events
		if b.config.Custom.Is() { // projected payloads have the type that dead letters have
			like = others[1]
		}
		switch like.OID("payload") {
		case pg.OIDBytea:
			payload = "bytea"
		case pg.OIDJSONB:
			payload = "jsonb"
		}
		if archive, err = migrate.CheckArchive(ctx, b.db, b.config.Archive, own, payload, b.config.Custom.Is(), &missing); err != nil {
			return b.db.ConnectError(err)
		}
	}
	if others[0].Unlogged {
		missing.Add(fmt.Sprintf("table %s is UNLOGGED, and a crash would empty it; a claim must not be forgotten", others[0].Quoted),
			fmt.Sprintf("ALTER TABLE %s SET LOGGED", others[0].Quoted))
	}
	if events.Exists && events.Has("id") && !b.config.Custom.Is() {
		if err := b.checkSequence(ctx, events, &missing); err != nil {
			return err
		}
	}
	if !b.config.Custom.Is() && events.Exists && events.Has("available_at") {
		if err := missing.AddDelayedIndex(ctx, b.db, events, "available_at"); err != nil {
			return b.db.ConnectError(err)
		}
	}
	if events.Exists && others[2].Exists {
		if err := b.checkOwners(ctx, events, others[2], archive, &missing); err != nil {
			return b.db.ConnectError(err)
		}
	}
	if !others[0].Exists || b.config.Archive != "" && !archive.Exists {
		if err := b.checkSchemas(ctx); err != nil {
			return err
		}
	}
	wrong := missing.Err()
	if wrong != nil && !errors.Is(wrong, buffer.ErrProjection) {
		return wrong
	}
	if err := b.open(ctx, events, others, archive, facts, wrong); err != nil {
		return err
	}
	return wrong
}

// checkSchemas returns a buffer.ErrNotReady with the schemas that do not exist and that migrate does not make: nothing in them can be made before.
func (b *Buffer) checkSchemas(ctx context.Context) error {
	if b.config.Custom.Is() {
		return nil
	}
	table, _ := b.tableName()
	archive, _ := pg.SplitTable(b.config.Archive)
	var missing catalog.Findings
	for _, schema := range []string{table, b.config.Schema, archive} {
		no, err := catalog.NoSchema(ctx, b.db, schema)
		if err != nil {
			return b.db.ConnectError(err)
		}
		if no {
			missing.AddNoSchema(schema)
		}
	}
	return missing.Err()
}

// gone is the finding about a buffer that does not exist.
func (b *Buffer) gone(ctx context.Context, events catalog.Table, schema, name string) (*buffer.Finding, error) {
	custom := b.config.Custom.Is()
	buffers, err := catalog.Find(ctx, b.db, cmp.Or(b.config.Schema, schema), "outbox_buffers")
	if err != nil {
		return nil, err
	}
	lost, err := catalog.Lost(ctx, b.db, buffers, b.config.Pipeline, schema, name, custom)
	if err != nil {
		return nil, err
	}
	if lost != nil {
		f := lost.Finding(custom)
		return &f, nil
	}
	near, err := catalog.Similar(ctx, b.db, schema, name)
	f := notready.NoTable(events.Wanted, near, custom)
	return &f, err
}

// checkApplication returns a buffer.ErrNotReady if the application owns the table: what else is wrong with it is the application's affair.
func (b *Buffer) checkApplication(ctx context.Context, events catalog.Table, columns []string) error {
	lacks := events.Lacks(columns)
	if !events.Exists || lacks == nil {
		return nil
	}
	buffers, err := catalog.Find(ctx, b.db, cmp.Or(b.config.Schema, events.Schema), "outbox_buffers")
	if err != nil {
		return b.db.ConnectError(err)
	}
	t, err := catalog.Application(ctx, b.db, events, buffers, lacks, b.config.Pipeline)
	if err != nil {
		return b.db.ConnectError(err)
	}
	return t.Err("")
}

// checkEvents checks the relay's own table. gone is the finding about one that does not exist.
func checkEvents(events catalog.Table, gone *buffer.Finding, columns []string, missing *catalog.Findings) {
	if gone != nil {
		*missing = append(*missing, *gone)
		return
	}
	missing.AddMissing(events, columns, migrate.AddsToEvents, all...)
}

// tableName returns the name of the event table, and its schema: "" if the search path has to be searched. It is searched
// once, so that what is planted in it later changes nothing.
func (b *Buffer) tableName() (schema, name string) {
	schema, name = pg.SplitTable(b.config.Table)
	if t := b.table.Load(); t != nil {
		schema = t.schema
	}
	return schema, name
}

// checkOwners adds objects that another role planted. The buffer's owner is trusted: its triggers run with the relay's
// rights anyway. The ledger of a custom table may have another owner, whom Migrate has checked.
func (b *Buffer) checkOwners(ctx context.Context, events, buffers, archive catalog.Table, missing *catalog.Findings) error {
	o := migrate.LedgerObjects(buffers.Schema)
	o.Trusted = []string{events.Quoted}
	if b.config.Custom.Is() {
		o.Trusted = append(o.Trusted, buffers.Quoted)
	}
	if archive.Quoted != "" {
		o.Relations, o.Guarded = append(o.Relations, archive.Quoted), append(o.Guarded, archive.Quoted)
		maintain, _ := migrate.ArchiveMaintain(archive.Schema, archive.Name)
		o.Functions = append(o.Functions, maintain)
	}
	return missing.AddForeign(ctx, b.db, o, events.Quoted)
}

// open takes the tables that Check found into use. others are ledger, dead letters, buffers and relays; unusable is why its events
// cannot be sent.
func (b *Buffer) open(ctx context.Context, events catalog.Table, others []catalog.Table, archive catalog.Table, facts custom.Facts, unusable error) (err error) {
	sinks := pg.Ident(others[0].Schema, "outbox_sinks")
	names := []string{
		"outbox_batches", others[0].Quoted, "outbox_dead_letters", others[1].Quoted, "outbox_buffers", others[2].Quoted, "outbox_archive", archive.Quoted, "outbox_sinks", sinks,
		"outbox_relays", others[3].Quoted,
		"'outbox_numbers'", pg.Literal(pg.Ident(others[0].Schema, "outbox_numbers")),
	}
	maintain := ""
	if archive.PartitionKey != "" { // its key has one more column
		names = append(names, "ON CONFLICT (id, group_id) DO NOTHING", "ON CONFLICT (id, group_id, archived_at) DO NOTHING")
		maintain, _ = migrate.ArchiveMaintain(archive.Schema, archive.Name)
	}
	t := &table{unusable: unusable, schema: events.Schema, replaced: make(chan struct{}), Tables: ledger.Tables{
		Buffer:   events.Schema + "." + events.Name,
		Events:   events.Quoted,
		OID:      events.ID,
		Schema:   others[0].Schema,
		Sequence: events.Sequence, PayloadOID: events.OID("payload"), DeadPayloadOID: others[1].OID("payload"),
		Archive: archive.Quoted != "", ArchiveMaintain: maintain,
		AvailableAt: "available_at",
		LockTimeout: max(time.Millisecond, min(events.DeadlockTimeout/2, time.Second)),
		Names:       strings.NewReplacer(append(names, "outbox_events", events.Quoted)...),
	}}
	b.db.ServerRunsLinux(events.ServerIsLinux)
	if b.config.Custom.Is() {
		names = append(names, "outbox_events", events.Quoted)
		parts := custom.Parts{Base: b.base, Ledger: b.Ledger, Claimer: b.claimer, Watermarks: b.watermarks}
		t.custom = custom.New(parts, &t.Tables, facts, b.config.Custom, names)
		t.events, t.unsent = t.custom, t.custom.Unsent()
		return b.register(ctx, t)
	}
	t.events, t.unsent = relayTable{b.claimer, b.Ledger, b.DeadLetters, &t.Tables}, buffer.UnsentEventColumns(events.Columns)
	t.Statements = backlog.Statements(t.Names)
	if t.RangeIneligible, err = claim.RangeIneligible(ctx, b.db, &t.Tables); err != nil {
		return b.db.ConnectError(err)
	}
	return b.register(ctx, t)
}

// register reads the buffer's own row, or writes it the first time. The table is used from now on, instead of another one that
// had its name, or of this one as it was when it could only be read.
func (b *Buffer) register(ctx context.Context, t *table) error {
	stored, err := b.claimer.Register(ctx, &t.Tables)
	if errors.Is(err, buffer.ErrNoWrites) { // what can be read is shown all the same
		t.unusable, t.unregistered = err, true
		b.table.CompareAndSwap(nil, t)
		return err
	}
	was := b.table.Load()
	same := was != nil && was.OID == t.OID && was.Sequence == t.Sequence && !was.Replaced() && was.unusable == nil
	if err != nil || same || !b.table.CompareAndSwap(was, t) {
		return err
	}
	if was == nil || was.unregistered {
		b.watermarks.StartAt(stored)
	}
	if was != nil {
		close(was.replaced)
	}
	return nil
}

func (b *Buffer) checkSequence(ctx context.Context, events catalog.Table, missing *catalog.Findings) error {
	if events.Sequence == "" {
		missing.Add(fmt.Sprintf("column id of table %s has no sequence of its own; ids must come from the database and never twice", events.Quoted),
			fmt.Sprintf("ALTER TABLE %s ALTER id ADD GENERATED ALWAYS AS IDENTITY", events.Quoted))
		return nil
	}
	return b.db.ConnectError(b.db.RoundTrip(ctx, []pg.Step{pg.ReadTx(b.db.StatementTimeout), {
		SQL: privilegesOfSequenceSQL, Args: []string{events.Sequence},
		Row: func(v [][]byte) error {
			if !pg.ReadBool(v[0]) {
				missing.Add(fmt.Sprintf("role %s may not use sequence %s", events.Role, events.Sequence),
					fmt.Sprintf("GRANT USAGE ON SEQUENCE %s TO %s", events.Sequence, pg.Quote(events.Role)))
			}
			return nil
		},
	}}))
}

// all is what the relay does with its tables.
var all = []string{"SELECT", "INSERT", "UPDATE", "DELETE"}
