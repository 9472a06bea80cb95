package sqlite

import (
	"context"
	"database/sql"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

const (
	// An event that several sinks take counts once.
	unclaimedSQL = `
SELECT (SELECT count(*) FROM outbox_events AS e WHERE e.group_id IS NULL AND (e.available_at IS NULL OR e.available_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))) - count(*) FROM (
  SELECT DISTINCT e.id
  FROM outbox_batches AS l CROSS JOIN json_each(l.members) AS run CROSS JOIN outbox_events AS e
  WHERE l.buffer = ?1 AND e.group_id IS NULL AND e.created_at <= l.newest_at AND (e.available_at IS NULL OR e.available_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
    AND e.id BETWEEN json_extract(run.value, '$[0]') AND json_extract(run.value, '$[1]'))`

	routedBatchesSQL = `
SELECT group_id, coalesce(claim_id, group_id), iif(claim = 'stamp', claim_id, NULL), claim = 'range', sink, state = 'delivered', state <> 'waiting' AND due_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now'),
       due_at = ` + never + `, events, coalesce(members, '[]'),
       sink <> '*' AND NOT EXISTS (SELECT 1 FROM outbox_sinks AS s WHERE s.buffer = ?1 AND s.sink = b.sink)
FROM outbox_batches AS b WHERE buffer = ?1`

	countRangesSQL = `
SELECT count(*) FROM json_each(?1) AS run CROSS JOIN outbox_events AS e
WHERE e.id BETWEEN json_extract(run.value, '$[0]') AND json_extract(run.value, '$[1]') AND e.group_id IS ?2`
)

// routedBatch is a ledger row of a buffer with several sinks.
type routedBatch struct {
	group, claim string
	stamp        *string // what its events carry; nil: none
	byRange      bool
	sink         string
	delivered    bool
	leased       bool
	never        bool
	events       int64
	members      idset.Set
	unserved     bool
}

func (b *Buffer) routedBatches(ctx context.Context, tx transaction) ([]routedBatch, error) {
	rows, err := tx.rows(ctx, routedBatchesSQL, b.config.Table)
	return db.All(rows, err, func(rows *sql.Rows, r *routedBatch) error {
		var members string
		err := rows.Scan(&r.group, &r.claim, &r.stamp, &r.byRange, &r.sink, &r.delivered, &r.leased, &r.never, &r.events, &members, &r.unserved)
		r.members, _ = idset.ParseJSON(members) // unreadable ones hold nothing; see free
		return err
	})
}

// claimsOf returns the members of each claim by range. Those of a stamp are left out, because an event carries one claim_id.
func claimsOf(all []routedBatch) map[string][]idset.Set {
	claims := map[string][]idset.Set{}
	for i := range all {
		if r := &all[i]; r.byRange {
			claims[r.claim] = append(claims[r.claim], r.members)
		}
	}
	return claims
}

// auditSinks is the part of an audit for several sinks.
func (b *Buffer) auditSinks(ctx context.Context, tx transaction, a *buffer.Audit) error {
	if err := tx.row(ctx, unclaimedSQL, b.config.Table).Scan(&a.Unclaimed); err != nil {
		return err
	}
	all, err := b.routedBatches(ctx, tx)
	if err != nil {
		return err
	}
	type place struct{ sink, stamp string }
	var (
		claims []idset.Set
		sent   = map[place][]idset.Set{}
	)
	for _, members := range claimsOf(all) {
		claims = append(claims, idset.Union(members...))
	}
	if a.Split, err = countRanges(ctx, tx, idset.Overlap(claims...), nil); err != nil {
		return err
	}
	for i := range all {
		r := &all[i]
		add := func(c *buffer.Count) { c.Batches, c.Events = c.Batches+1, c.Events+r.events }
		switch {
		case r.unserved:
			add(&a.Unserved)
		case r.sink != buffer.Unrouted || r.delivered:
		case r.never:
			add(&a.Kept)
		default:
			add(&a.Unrouted)
		}
		if !r.delivered { // otherwise it is not sent again
			at := place{sink: r.sink}
			if r.stamp != nil {
				at.stamp = *r.stamp
			}
			sent[at] = append(sent[at], r.members)
		}
	}
	for at, members := range sent {
		var stamp any
		if at.stamp != "" {
			stamp = at.stamp
		}
		n, err := countRanges(ctx, tx, idset.Overlap(members...), stamp)
		if err != nil {
			return err
		}
		a.Doubled += n
	}
	return nil
}

// countRanges counts the events of a set that carry a stamp, or none.
func countRanges(ctx context.Context, tx transaction, s idset.Set, stamp any) (n int64, err error) {
	if len(s) > 0 {
		err = tx.row(ctx, countRangesSQL, s.JSON(), stamp).Scan(&n)
	}
	return n, err
}

const joinClaimSQL = `
UPDATE outbox_batches SET claim_id = ?2 WHERE group_id = ?1`

// joinClaims gives batches of different claims that hold the same events one claim_id, so that their settles see each other, and returns how
// many it has changed. A claim of which a batch is leased stays as it is, with all that overlap with it.
func (b *Buffer) joinClaims(ctx context.Context, tx transaction) (changed int64, err error) {
	all, err := b.routedBatches(ctx, tx)
	if err != nil {
		return 0, err
	}
	var (
		claims = claimsOf(all)
		names  []string
		island = map[string]string{} // the claim that each joins
		busy   = map[string]bool{}
		unions []idset.Set
	)
	for name, members := range claims {
		union := idset.Union(members...)
		claims[name], unions = []idset.Set{union}, append(unions, union)
	}
	twice := idset.Overlap(unions...)
	for name, union := range claims { // mostly none
		island[name] = name
		if len(idset.Overlap(union[0], twice)) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for i, one := range names {
		for _, other := range names[i+1:] {
			if island[one] == island[other] || len(idset.Overlap(claims[one][0], claims[other][0])) == 0 {
				continue
			}
			to, from := island[one], island[other]
			for _, name := range names {
				if island[name] == from {
					island[name] = to
				}
			}
		}
	}
	for i := range all {
		if r := &all[i]; r.byRange && r.leased {
			busy[island[r.claim]] = true
		}
	}
	for i := range all {
		r := &all[i]
		to := island[r.claim]
		joins := slices.ContainsFunc(names, func(name string) bool { return name != r.claim && island[name] == to })
		if !r.byRange || busy[to] || !joins || r.claim == to && r.claim != r.group {
			continue
		}
		n, err := tx.exec(ctx, joinClaimSQL, r.group, to)
		if err != nil {
			return changed, err
		}
		changed += n
	}
	return changed, nil
}
