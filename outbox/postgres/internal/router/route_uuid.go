package router

import (
	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/internal/routing"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// deliverUUIDSQL is deliverSQL for a table without integers, whose claims are stamps: all rows share the claim, and nothing is added to
// rows that wait. The uuids of a row are in the order of its members.
const deliverUUIDSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, newest_at, members, sink, claim_id, error, claimed_at, uuids, routes_no, stamp_xid)
SELECT r.group_id, $1, 'range', CASE WHEN r.mine THEN 'leased' ELSE 'waiting' END, r.mine::int,
       CASE WHEN r.mine THEN clock_timestamp() + $13::interval WHEN r.sink = '*' THEN 'infinity' ELSE clock_timestamp() END, $3, r.mine::int,
       0, 0, r.events, r.first_id, r.last_id, r.oldest_at, '-infinity', r.members::int8multirange, r.sink, $2::uuid,
       CASE r.sink WHEN '*' THEN 'no sink takes the topic' END, current_setting('relay.claimed_at')::timestamptz, r.uuids::uuid[], ` + ledger.RoutesNoSQL + `, ` + ledger.StampXidSQL + `
FROM unnest($4::uuid[], $5::text[], $6::boolean[], $7::int[], $8::bigint[], $9::bigint[], $10::timestamptz[], $11::text[], $12::boolean[], $14::text[])
  r(group_id, sink, shared, events, first_id, last_id, oldest_at, members, mine, uuids)
WHERE current_setting('relay.fenced') = '1'
RETURNING group_id`

// uuidsOf returns the uuids of each delivery, an array in an array.
func uuidsOf(deliveries []routing.Delivery, events []outbox.Event) string {
	var all pg.Array
	for i := range deliveries {
		all.Append([]byte(uuids(deliveries[i].Of(events))))
	}
	return all.String()
}

// uuids are those of some events, as an array.
func uuids(events []outbox.Event) string {
	keys := make([]uuid.UUID, len(events))
	for i := range events {
		keys[i] = events[i].UUID
	}
	return pg.UUIDArray(keys)
}
