package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// wake says how the relay hears of events.
func (e *examination) wake(ctx context.Context, events catalog.Table) {
	const about = "wake-ups"
	asked := e.b.config.Wake == buffer.WakeNotify
	if e.b.config.Wake == buffer.WakePoll {
		return
	}
	if e.b.config.Own.Is() {
		e.fine(about, instead)
		return
	}
	r, err := e.b.ring(ctx, events.Quoted)
	if e.failed(about, err) {
		return
	}
	if !r.works() {
		if asked {
			e.warn(about, "wake is notify, and the "+errNoRing.Error()+"; "+instead, mendRing)
		} else {
			e.fine(about, instead+"; wake: notify and relay migrate make commits ring")
		}
		return
	}
	pooled, err := e.b.pooled(ctx)
	switch {
	case e.failed(about, err):
	case pooled && asked:
		e.warn(about, "wake is notify, and "+errPooled.Error()+"; "+instead, mendPooled)
	case pooled:
		e.fine(about, errPooled.Error()+"; "+instead)
	default:
		e.fine(about, "commits ring")
	}
}

// pooled tells whether source.url leads to a pooler.
func (b *Buffer) pooled(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	config, err := pg.ConnConfig(b.config.URL)
	if err != nil {
		return false, err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return pg.ThroughPooler(ctx, conn)
}
