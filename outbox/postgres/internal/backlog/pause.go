package backlog

import (
	"context"
	"fmt"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

const (
	pausePipelineSQL = `
UPDATE outbox_buffers SET paused_at = clock_timestamp(), paused_by = $2, paused_reason = $3
WHERE buffer = $1 AND paused_at IS NULL`

	resumePipelineSQL = `
UPDATE outbox_buffers SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
WHERE buffer = $1 AND paused_at IS NOT NULL`

	pauseSinkSQL = `
UPDATE outbox_sinks SET paused_at = clock_timestamp(), paused_by = $2, paused_reason = $3
WHERE buffer = $1 AND sink = $4 AND paused_at IS NULL AND dropped_at IS NULL`

	resumeSinkSQL = `
UPDATE outbox_sinks SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
WHERE buffer = $1 AND sink = $2 AND paused_at IS NOT NULL AND dropped_at IS NULL`

	usedSQL = `
SELECT EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1)`

	pausableSQL = `
SELECT sink FROM outbox_sinks WHERE buffer = $1 AND dropped_at IS NULL ORDER BY sink`

	pipelinePausedSQL = `
SELECT EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND paused_at IS NOT NULL)`
)

var (
	_ buffer.Pauser   = (*Backlog)(nil)
	_ buffer.Pausable = (*Backlog)(nil)
)

// Pause pauses the pipeline or a sink; see buffer.Pauser.
func (b *Backlog) Pause(ctx context.Context, sink, by, reason string) (changed bool, err error) {
	if sink == "" {
		return b.setPause(ctx, "", pausePipelineSQL, by, reason)
	}
	return b.setPause(ctx, sink, pauseSinkSQL, by, reason, sink)
}

// Resume takes a pause back.
func (b *Backlog) Resume(ctx context.Context, sink string) (changed bool, err error) {
	if sink == "" {
		return b.setPause(ctx, "", resumePipelineSQL)
	}
	return b.setPause(ctx, sink, resumeSinkSQL, sink)
}

func (b *Backlog) setPause(ctx context.Context, sink, statement string, args ...string) (bool, error) {
	t, err := b.base.Ready(ctx)
	if err != nil {
		return false, err
	}
	var (
		changed int64
		used    bool
		missing = &buffer.NoSinkError{Table: t.Buffer, Name: sink}
	)
	begin := b.base.DB.WriteTx(b.base.DB.StatementTimeout, "synchronous_commit", "on")
	begin.Row = func([][]byte) error {
		missing.Known = nil
		return nil
	}
	for i := range args {
		args[i] = b.base.DB.Text(args[i])
	}
	steps := []pg.Step{begin, {SQL: t.SQL(usedSQL), Args: []string{t.Buffer}, Row: func(v [][]byte) error {
		used = pg.ReadBool(v[0])
		return nil
	}}}
	if sink != "" {
		steps = append(steps, pg.Step{SQL: t.SQL(pausableSQL), Args: []string{t.Buffer}, Row: func(v [][]byte) error {
			missing.Known = append(missing.Known, string(v[0]))
			return nil
		}})
	}
	err = b.base.DB.Transact(ctx, append(steps, pg.Step{SQL: t.SQL(statement), Args: append([]string{t.Buffer}, args...), Affected: &changed})...)
	switch {
	case err != nil:
		return false, b.base.Explain(ctx, "pausing or resuming", err)
	case !used:
		return false, fmt.Errorf("%w: no relay has used table %s yet; run relay migrate -c relay.yaml, or start a relay", buffer.ErrNotReady, t.Buffer)
	case sink != "" && !slices.Contains(missing.Known, sink):
		return false, missing
	}
	return changed > 0, nil
}

// Paused implements buffer.Pausable.
func (b *Backlog) Paused(ctx context.Context) (paused bool, err error) {
	t, err := b.base.Ready(ctx)
	if err != nil {
		return false, err
	}
	err = b.base.DB.Transact(ctx, pg.ReadTx(b.base.DB.StatementTimeout), pg.Step{SQL: t.SQL(pipelinePausedSQL), Args: []string{t.Buffer}, Row: func(v [][]byte) error {
		paused = pg.ReadBool(v[0])
		return nil
	}})
	return paused, b.base.Explain(ctx, "reading whether the pipeline is paused", err)
}
