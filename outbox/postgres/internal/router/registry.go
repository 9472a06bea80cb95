package router

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
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
	no      int64
	buffer  int64 // the table's oid
	table   routing.Table
	dropped []string
	// current is the present name of a configured sink that was renamed, local the reverse.
	current, local map[string]string
}

func nameIn(names map[string]string, name string) string { return cmp.Or(names[name], name) }

// A start adds sinks and updates what they take. The routes_no of a sink that is added are those from the next one on. A start removes none: an old relay that restarts during a rollout would remove those of
// the new one.
const (
	lockBufferSQL = `
SELECT routes_no FROM outbox_buffers WHERE buffer = $1 FOR UPDATE`

	registerSQL = `
INSERT INTO outbox_sinks AS s (buffer, sink, match, batch_size, hook, routed)
SELECT $1, coalesce((
  SELECT r.sink FROM outbox_sinks r
  WHERE r.buffer = $1 AND $2 = ANY (r.formerly) AND NOT EXISTS (SELECT FROM outbox_sinks o WHERE o.buffer = $1 AND o.sink = $2)
  LIMIT 1), $2), $3::text[], $4::int, $5::boolean, (SELECT int8multirange(int8range(routes_no + 1, NULL)) FROM outbox_buffers WHERE buffer = $1)
ON CONFLICT (buffer, sink) DO UPDATE SET match = EXCLUDED.match, batch_size = EXCLUDED.batch_size, hook = EXCLUDED.hook,
    match_before = CASE WHEN s.match <> EXCLUDED.match THEN s.match ELSE s.match_before END,
    match_at = CASE WHEN s.match <> EXCLUDED.match THEN clock_timestamp() ELSE s.match_at END
WHERE s.match <> EXCLUDED.match OR s.batch_size <> EXCLUDED.batch_size OR s.hook <> EXCLUDED.hook
RETURNING set_config('relay.changed', '1', true)`

	serveSQL = `
UPDATE outbox_sinks SET seen_at = clock_timestamp()
WHERE buffer = $1 AND sink = ANY ($2::text[]) AND dropped_at IS NULL`

	countChangeSQL = `
UPDATE outbox_buffers b SET routed = routed OR served, routes_no = routes_no + 1
FROM (SELECT EXISTS (SELECT FROM outbox_sinks WHERE buffer = $1 AND dropped_at IS NULL) AS served) s
WHERE buffer = $1 AND (current_setting('relay.changed', true) = '1' OR NOT routed AND served)`

	readRegistrySQL = `
SELECT b.routes_no, s.sink, s.match, s.batch_size, s.dropped_at IS NOT NULL, s.formerly
FROM outbox_buffers b LEFT JOIN outbox_sinks s ON s.buffer = b.buffer
WHERE b.buffer = $1 ORDER BY s.sink`
)

// Routes are the routes of a buffer. They are safe for concurrent use.
type Routes struct {
	base        *ledger.Base
	registering sync.Mutex
	read        atomic.Pointer[registry]
	open        *routing.OpenRows
}

// Register writes the configured sinks into the registry and reads it.
func (r *Routes) Register(ctx context.Context, t *ledger.Tables) error {
	r.registering.Lock()
	defer r.registering.Unlock()
	return r.register(ctx, t)
}

// ready registers the sinks, unless this process has done so.
func (r *Routes) ready(ctx context.Context, t *ledger.Tables) (*registry, error) {
	if known := r.read.Load(); known != nil && known.buffer == t.OID {
		return known, nil
	}
	r.registering.Lock()
	defer r.registering.Unlock()
	if known := r.read.Load(); known != nil && known.buffer == t.OID {
		return known, nil
	}
	if err := r.register(ctx, t); err != nil {
		return nil, err
	}
	return r.read.Load(), nil
}

func (r *Routes) register(ctx context.Context, t *ledger.Tables) error {
	steps := []pg.Step{
		r.base.DB.WriteTx(r.base.DB.StatementTimeout, "synchronous_commit", "on"),
		{SQL: t.SQL(lockBufferSQL), Args: []string{t.Buffer}},
	}
	steps = append(steps, r.renames(t)...)
	for _, s := range r.base.Sinks {
		steps = append(steps, pg.Step{SQL: t.SQL(registerSQL), Args: []string{t.Buffer, s.Sink, pg.TextArray(s.Match), pg.Int(int64(s.BatchSize)), pg.Bool(s.Hook)}})
	}
	steps = append(steps, r.takeOvers(t)...)
	steps = append(steps,
		pg.Step{SQL: t.SQL(countChangeSQL), Args: []string{t.Buffer}},
		pg.Step{SQL: t.SQL(wakeKeptSQL), Args: []string{t.Buffer, pg.Bool(r.base.Unmatched != buffer.UnmatchedKeep)}})
	if err := r.base.DB.Transact(ctx, steps...); err != nil {
		return r.base.DB.ConnectError(err)
	}
	if err := r.Read(ctx, t); err != nil {
		return err
	}
	return r.serve(ctx, t)
}

// names are the configured sinks.
func (r *Routes) names() (names []string) {
	for _, s := range r.base.Sinks {
		names = append(names, s.Sink)
	}
	return names
}

// Current returns the present name of a configured sink.
func (r *Routes) Current(sink string) string {
	if known := r.read.Load(); known != nil {
		return nameIn(known.current, sink)
	}
	return sink
}

// Read reads the registry.
func (r *Routes) Read(ctx context.Context, t *ledger.Tables) error {
	var (
		read   registry
		routes []buffer.Route
		names  []string
		former map[string]string
	)
	begin := pg.ReadTx(r.base.DB.StatementTimeout)
	begin.Row = func([][]byte) error {
		read, routes, names, former = registry{buffer: t.OID, current: map[string]string{}, local: map[string]string{}}, nil, nil, map[string]string{}
		return nil
	}
	err := r.base.DB.Transact(ctx, begin, pg.Step{SQL: t.SQL(readRegistrySQL), Args: []string{t.Buffer}, Row: func(v [][]byte) error {
		read.no = pg.ReadInt8(v[0])
		if v[1] != nil {
			names = append(names, string(v[1]))
			for _, was := range texts(v[5]) {
				former[was] = string(v[1])
			}
		}
		switch {
		case v[1] == nil: // none is registered
		case pg.ReadBool(v[4]):
			read.dropped = append(read.dropped, string(v[1]))
		default:
			routes = append(routes, buffer.Route{Sink: string(v[1]), Match: texts(v[2]), BatchSize: pg.ReadInt4(v[3])})
		}
		return nil
	}})
	if err != nil {
		return err
	}
	if read.table, err = routing.NewTable(routes); err != nil {
		return fmt.Errorf("table outbox_sinks: %w", err)
	}
	for _, name := range r.names() {
		if now := former[name]; now != "" && !slices.Contains(names, name) {
			read.current[name], read.local[now] = now, name
		}
	}
	r.read.Store(&read)
	return nil
}

// CanRoute returns a buffer.ErrNotReady if there is no sink to route to: all are dropped. Then nothing should be claimed.
func (r *Routes) CanRoute(ctx context.Context, t *ledger.Tables) error {
	_, err := r.routable(ctx, t)
	return err
}

// routable returns the registry, which has sinks to route to; otherwise a buffer.ErrNotReady.
func (r *Routes) routable(ctx context.Context, t *ledger.Tables) (*registry, error) {
	known, err := r.ready(ctx, t)
	if err != nil || len(known.table) > 0 {
		return known, err
	}
	if err := r.Read(ctx, t); err != nil { // one may have been restored
		return nil, r.base.Explain(ctx, "reading the routes", err)
	}
	if known = r.read.Load(); len(known.table) == 0 {
		return nil, r.noSinks(t)
	}
	return known, nil
}

func (r *Routes) noSinks(t *ledger.Tables) error {
	return fmt.Errorf("%w: all sinks of table %s are dropped, so its events wait. Restore one: relay sinks restore NAME -c relay.yaml", buffer.ErrNotReady, t.Buffer)
}

// Serves reports whether this process serves a sink that it is configured with: the sink is not dropped, as far as is known.
func (r *Routes) Serves(ctx context.Context, t *ledger.Tables, sink string) (bool, error) {
	known, err := r.ready(ctx, t)
	if err != nil {
		return false, err
	}
	return !slices.Contains(known.dropped, nameIn(known.current, sink)), nil
}

// Serve notes that this process serves its sinks, and reads the registry.
func (r *Routes) Serve(ctx context.Context, t *ledger.Tables) error {
	if _, err := r.ready(ctx, t); err != nil {
		return err
	}
	if err := r.Read(ctx, t); err != nil {
		return r.base.Explain(ctx, "reading the routes", err)
	}
	return r.base.Explain(ctx, "noting that sinks are served", r.serve(ctx, t))
}

func (r *Routes) serve(ctx context.Context, t *ledger.Tables) error {
	names := r.names()
	for i := range names {
		names[i] = r.Current(names[i])
	}
	steps := []pg.Step{
		r.base.DB.WriteTx(r.base.DB.StatementTimeout, "synchronous_commit", "off"),
		{SQL: t.SQL(serveSQL), Args: []string{t.Buffer, pg.TextArray(names)}},
	}
	if r.base.Ordered {
		steps = append(steps, pg.Step{SQL: t.SQL(numberSQL), Args: []string{t.Buffer}})
	}
	return r.base.DB.Transact(ctx, steps...)
}

// Batches of before the sinks kept order have no number, by which a take-over finds them. Claims wait until they are gone.
const numberSQL = `
UPDATE outbox_batches SET seq = 0 WHERE buffer = $1 AND seq IS NULL AND sink <> '*'`

func texts(array []byte) (all []string) {
	pg.ReadArray(array, func(text []byte) { all = append(all, string(text)) })
	return all
}
