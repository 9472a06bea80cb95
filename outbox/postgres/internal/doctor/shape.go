package doctor

import (
	"context"
	"strconv"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

const fillfactorSQL = `
SELECT coalesce((SELECT option_value FROM pg_options_to_table(c.reloptions) WHERE option_name = 'fillfactor'), '100')
FROM pg_class c WHERE c.oid = $1::regclass`

// enoughForStamps is a fillfactor that leaves room for the stamps of small rows.
const enoughForStamps = 70

// fillfactor adds whether the pages of the buffer fit the claim mode.
func (d *diagnosis) fillfactor(ctx context.Context, events catalog.Table) {
	const about = "fillfactor"
	if d.state == nil {
		return
	}
	d.query(ctx, about, fillfactorSQL, func(v []string) {
		fill, err := strconv.Atoi(v[0])
		if d.failed(about, err) {
			return
		}
		is, set := "fillfactor of table "+events.Quoted+" is "+v[0], func(wanted string) string {
			return "ALTER TABLE " + events.Quoted + " SET (fillfactor = " + wanted + ")"
		}
		switch stamps := d.state.Mode != buffer.ClaimRange; {
		case stamps && fill > enoughForStamps:
			d.warn(about, is+"; a claim by stamp finds no room on a full page, which costs the database half as much again an event (the statement blocks no insert; only new pages change)", set("50"))
		case !stamps && fill <= enoughForStamps:
			d.warn(about, is+"; a claim by range needs no room on a page, and half-empty pages are twice as many to write and to read (the statement blocks no insert; only new pages change)", set("100"))
		default:
			d.ok(about, v[0]+" fits claims by "+string(d.state.Mode))
		}
	}, events.Quoted)
}

const headersCheckSQL = `
SELECT quote_ident(conname) FROM pg_constraint
WHERE conrelid = $1::regclass AND contype = 'c' AND pg_get_constraintdef(oid) = 'CHECK ((jsonb_typeof(headers) = ''object''::text))'`

// payload adds what a payload of type jsonb costs.
func (d *diagnosis) payload(ctx context.Context, events catalog.Table) {
	const about = "payload"
	if events.OID("payload") != pg.OIDJSONB {
		return
	}
	drop, alter, add := "", []string{"ALTER payload TYPE json"}, ""
	if events.OID("headers") == pg.OIDJSONB {
		alter = append(alter, "ALTER headers TYPE json")
		d.query(ctx, about, headersCheckSQL, func(v []string) {
			drop, add = "DROP CONSTRAINT "+v[0]+", ", ", ADD CONSTRAINT "+v[0]+" CHECK (json_typeof(headers) = 'object')"
		}, events.Quoted)
	}
	text := "column payload of table " + events.Quoted + " is jsonb: PostgreSQL parses each payload and writes it anew, about 1.3 µs an event of 300 bytes, " +
		"and what arrives is not byte for byte what was inserted. The statement that changes it rewrites the table under an exclusive lock, so run it while the table is nearly empty"
	if d.state != nil && d.state.Tables.Archive {
		text += ", and change the archive before"
	}
	d.add(buffer.LevelOK, about, text,
		"BEGIN; SET LOCAL lock_timeout = '2s'; ALTER TABLE "+events.Quoted+" "+drop+strings.Join(alter, ", ")+add+"; COMMIT")
}
