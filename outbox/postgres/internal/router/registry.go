package router

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/routing"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The registry, table outbox_sinks, decides what a batch is routed to, not the configuration of the process that routes
// it: an old relay that runs beside a new one gives the new one's sinks their events too. routes_no rises with each
// change, and a route compares it.

// registry is what a process has read of it.
type registry struct {
	no    int64
	table routing.Table
}

// A start adds sinks and updates what they take. It removes none: an old relay that restarts during a rollout would remove those of
// the new one.
const (
	lockBufferSQL = `
SELECT routes_no FROM outbox_buffers WHERE buffer = $1 FOR UPDATE`

	registerSQL = `
INSERT INTO outbox_sinks AS s (buffer, sink, match, batch_size)
SELECT $1, $2, $3::text[], $4::int
ON CONFLICT (buffer, sink) DO UPDATE SET match = EXCLUDED.match, batch_size = EXCLUDED.batch_size
WHERE s.match <> EXCLUDED.match OR s.batch_size <> EXCLUDED.batch_size
RETURNING set_config('relay.changed', '1', true)`

	countChangeSQL = `
UPDATE outbox_buffers SET routed = true, routes_no = routes_no + 1
WHERE buffer = $1 AND (current_setting('relay.changed', true) = '1' OR NOT routed)`

	readRegistrySQL = `
SELECT b.routes_no, s.sink, s.match, s.batch_size
FROM outbox_buffers b JOIN outbox_sinks s ON s.buffer = b.buffer
WHERE b.buffer = $1 ORDER BY s.sink`
)

// Routes are the routes of a buffer. They are safe for concurrent use.
type Routes struct {
	base *ledger.Base
	read atomic.Pointer[registry]
	open openRows
}

// Register writes the configured sinks into the registry and reads it.
func (r *Routes) Register(ctx context.Context, t *ledger.Tables) error {
	steps := []pg.Step{
		r.base.DB.WriteTx(r.base.DB.StatementTimeout, "synchronous_commit", "on"),
		{SQL: t.SQL(lockBufferSQL), Args: []string{t.Buffer}},
	}
	for _, s := range r.base.Sinks {
		steps = append(steps, pg.Step{SQL: t.SQL(registerSQL), Args: []string{t.Buffer, s.Sink, textArray(s.Match), pg.Int(int64(s.BatchSize))}})
	}
	steps = append(steps, pg.Step{SQL: t.SQL(countChangeSQL), Args: []string{t.Buffer}})
	if err := r.base.DB.Transact(ctx, steps...); err != nil {
		return r.base.DB.ConnectError(err)
	}
	return r.Read(ctx, t)
}

// Read reads the registry.
func (r *Routes) Read(ctx context.Context, t *ledger.Tables) error {
	var (
		read   registry
		routes []buffer.Route
	)
	begin := pg.ReadTx(r.base.DB.StatementTimeout)
	begin.Row = func([][]byte) error {
		routes = nil
		return nil
	}
	err := r.base.DB.Transact(ctx, begin, pg.Step{SQL: t.SQL(readRegistrySQL), Args: []string{t.Buffer}, Row: func(v [][]byte) error {
		one := buffer.Route{Sink: string(v[1]), BatchSize: pg.ReadInt4(v[3])}
		pg.ReadArray(v[2], func(pattern []byte) { one.Match = append(one.Match, string(pattern)) })
		read.no = pg.ReadInt8(v[0])
		routes = append(routes, one)
		return nil
	}})
	if err != nil {
		return err
	}
	if read.table, err = routing.NewTable(routes); err != nil {
		return fmt.Errorf("table outbox_sinks: %w", err)
	}
	r.read.Store(&read)
	return nil
}

func textArray(texts []string) string {
	var a pg.Array
	for _, text := range texts {
		a.Append([]byte(text))
	}
	return a.String()
}
