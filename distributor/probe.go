package distributor

import "time"

// Probe paces the claims that are made although as many batches wait as may (MaxWaiting). All of them may wait because of their own data, and then
// only another event shows that it is they that are bad. So one batch is claimed at once, and the next after 5 s, 10 s, 20 s, and from then on every 30 s.
// Each costs a ledger row that may wait as well; one that is delivered costs none, and the next is claimed at once. So a Probe is not for an outage: while the sink is away, another batch shows nothing.
//
// The zero value is ready. A Probe is not safe for concurrent use.
type Probe struct {
	next    time.Time
	backoff time.Duration
}

const firstProbe, maxProbe = 5 * time.Second, 30 * time.Second

// Due reports whether a batch may be claimed now.
func (p *Probe) Due(now time.Time) bool { return !now.Before(p.next) }

// Use notes that a batch is claimed now.
func (p *Probe) Use(now time.Time) {
	p.backoff = min(max(2*p.backoff, firstProbe), maxProbe)
	p.next = now.Add(p.backoff)
}

// Reset begins anew, once fewer batches wait.
func (p *Probe) Reset() { *p = Probe{} }
