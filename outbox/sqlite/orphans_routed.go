package sqlite

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// With several sinks, events by stamp carry the claim_id of the batches that have them, so most stamps are no group_id of the ledger. Which of
// these events no batch has is found in Go: a statement would read the members of the claim for each event.
const (
	strayStampsSQL = `
SELECT lower(group_id), group_concat(id) FROM outbox_events
WHERE group_id IS NOT NULL GROUP BY group_id`

	batchesSQL = `
SELECT group_id FROM outbox_batches`

	claimStampsSQL = `
SELECT claim_id, members FROM outbox_batches WHERE buffer = ?1 AND claim = 'stamp' AND claim_id IS NOT NULL AND members IS NOT NULL`
)

// strayStamps returns the stamps of events that no batch has, for a buffer with several sinks.
func (b *Buffer) strayStamps(ctx context.Context, tx transaction) (stamps []string, err error) {
	rows, err := tx.rows(ctx, claimStampsSQL, b.config.Table)
	held, err := db.All(rows, err, scanPair)
	if err != nil {
		return nil, err
	}
	claims := map[string][]idset.Set{}
	for _, h := range held {
		if members, err := idset.ParseJSON(h[1]); err == nil { // unreadable ones hold nothing; see free
			claims[h[0]] = append(claims[h[0]], members)
		}
	}
	rows, err = tx.rows(ctx, batchesSQL)
	batches, err := db.Column[string](rows, err)
	if err != nil {
		return nil, err
	}
	slices.Sort(batches)
	rows, err = tx.rows(ctx, strayStampsSQL)
	groups, err := db.All(rows, err, scanPair)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		if _, found := slices.BinarySearch(batches, g[0]); found {
			continue
		}
		members := idset.Union(claims[g[0]]...)
		for text := range strings.SplitSeq(g[1], ",") {
			id, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, err
			}
			if !members.Has(id) {
				stamps = append(stamps, g[0])
				break
			}
		}
	}
	return stamps, nil
}

func scanPair(rows *sql.Rows, p *[2]string) error { return rows.Scan(&p[0], &p[1]) }
