package routing

import (
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/internal/idset"
)

// A sink that is behind would get a row, and later a send, for each claim, however few events those have. So a route adds events to
// the row that it wrote last for the sink, while nobody has leased it. The rows of that route take the claim_id of this
// row: otherwise a settle of one would not see that the other holds the same events. The claim_id of a row never changes.
// Under a stamp nothing is added, because claim_id is the stamp of one claim.

const (
	maxRanges = 64 // of ids in a row that is added to: each update writes all of them
	maxJoins  = 100
	maxOpen   = 2 // rows of a sink
	// maxShared bounds the rows that ever had one claim_id: their settles wait for each other.
	maxShared = 256
)

// open is a row that nobody has leased yet, as far as this process knows.
type open struct {
	group  uuid.UUID
	claim  *claim // nil if no other row has any of its events
	events int
	ranges int
	joins  int
	last   int64
}

// claim is the claim_id of rows that may share events.
type claim struct {
	id   uuid.UUID
	rows int
}

// OpenRows are the open rows of each sink, one for each route that goes on at the same time. They are safe for concurrent use.
type OpenRows struct {
	mu     sync.Mutex
	bySink map[string][]*open
}

// NewOpenRows returns those of a process that has routed nothing.
func NewOpenRows() *OpenRows { return &OpenRows{bySink: map[string][]*open{}} }

// Plan is what one route adds to, and the claim_id of its rows that share events.
type Plan struct {
	claim *claim
	into  []*open // for each delivery; nil for a row of its own
}

// PlanOf plans a route that adds nothing, to rows that have this claim_id.
func PlanOf(claimID uuid.UUID, deliveries []Delivery) *Plan {
	return &Plan{claim: &claim{id: claimID}, into: make([]*open, len(deliveries))}
}

// ClaimID is that of the rows of the route that share events.
func (p *Plan) ClaimID() uuid.UUID { return p.claim.id }

// IDs returns the group_ids of the rows that the deliveries are added to, uuid.Nil for none.
func (p *Plan) IDs() []uuid.UUID {
	ids := make([]uuid.UUID, len(p.into))
	for i, o := range p.into {
		if o != nil {
			ids[i] = o.group
		}
	}
	return ids
}

// Take plans a route of a claim. Until Keep, no other route adds to the same rows.
func (r *OpenRows) Take(group uuid.UUID, deliveries []Delivery, taken []bool) *Plan {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &Plan{into: make([]*open, len(deliveries))}
	for i := range deliveries {
		d := &deliveries[i]
		rows := r.bySink[d.Sink]
		at := slices.IndexFunc(rows, func(o *open) bool { return o.fits(d) && (!d.Shared || p.shares(o)) })
		if taken[i] || at < 0 || !alone(deliveries, i) {
			continue
		}
		p.into[i] = rows[at]
		if d.Shared {
			p.claim = rows[at].claim
		}
		r.bySink[d.Sink] = slices.Delete(rows, at, at+1)
	}
	if p.claim == nil {
		p.claim = &claim{id: group}
	}
	return p
}

// shares reports whether the rows of the route can have the claim_id of an open row.
func (p *Plan) shares(o *open) bool {
	return o.claim != nil && o.claim.rows < maxShared && (p.claim == nil || p.claim == o.claim)
}

// alone reports whether a delivery is the only one of its sink: the later ids of one that was cut go behind the earlier ones.
func alone(deliveries []Delivery, i int) bool {
	for j := range deliveries {
		if j != i && deliveries[j].Sink == deliveries[i].Sink {
			return false
		}
	}
	return true
}

// fits reports whether a delivery may be added to the row.
func (o *open) fits(d *Delivery) bool {
	return o.events+len(d.IDs) <= d.BatchSize && o.ranges+len(idset.Of(d.IDs)) <= maxRanges && o.joins < maxJoins
}

func (o *open) add(d *Delivery) {
	ids := idset.Of(d.IDs)
	o.ranges += len(ids)
	if o.events > 0 && d.IDs[0] == o.last+1 {
		o.ranges--
	}
	o.events += len(d.IDs)
	o.last = d.IDs[len(d.IDs)-1]
}

// Keep notes which rows are open after a route. inserted are the deliveries that have a row of their own.
func (r *OpenRows) Keep(p *Plan, deliveries []Delivery, taken []bool, inserted map[uuid.UUID]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range deliveries {
		d, o := &deliveries[i], p.into[i]
		if d.Shared && inserted[d.GroupID] {
			p.claim.rows++
		}
		switch {
		case taken[i]:
			continue
		case !inserted[d.GroupID]:
			o.joins++
		default:
			o = &open{group: d.GroupID}
			if d.Shared {
				o.claim = p.claim
			}
		}
		o.add(d)
		rows := append(r.bySink[d.Sink], o)
		r.bySink[d.Sink] = rows[max(0, len(rows)-maxOpen):]
	}
}
