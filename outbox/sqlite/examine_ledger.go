package sqlite

import (
	"context"
	"fmt"
)

const whyWaitingSQL = `
SELECT count(*), coalesce(sum(events), 0),
       coalesce((SELECT error FROM outbox_batches WHERE buffer = ?1 AND state = 'waiting' AND attempts + outages > 0 ORDER BY claimed_at DESC LIMIT 1), '')
FROM outbox_batches WHERE buffer = ?1 AND state = 'waiting' AND attempts + outages > 0`

// waiting says why batches wait.
func (e *examination) waiting(ctx context.Context) {
	const about = "batches"
	var (
		batches, events int64
		why             string
	)
	err := e.b.db.QueryRowContext(ctx, e.b.names.Replace(whyWaitingSQL), e.b.config.Table).Scan(&batches, &events, &why)
	switch {
	case e.failed(about, err):
	case batches == 0:
		e.fine(about, "none waits because it was not taken")
	default:
		e.warn(about, fmt.Sprintf("%d wait with %d events; the newest because: %s", batches, events, why),
			"mend what the reason names; they are sent again by themselves")
	}
}
