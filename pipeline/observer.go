package pipeline

import (
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Observer is told what a pipeline does. Its methods are called by many goroutines and must
// be quick.
type Observer interface {
	// Claimed: a claim or take over that returned a batch took so long.
	Claimed(l *buffer.Lease, took time.Duration)
	// Sent and Settled are delivery.Observer's.
	Sent(l *buffer.Lease, took time.Duration)
	Settled(l *buffer.Lease, outcomes []buffer.Outcome, sent bool, took time.Duration)
}

type noObserver struct{}

func (noObserver) Claimed(*buffer.Lease, time.Duration)                         {}
func (noObserver) Sent(*buffer.Lease, time.Duration)                            {}
func (noObserver) Settled(*buffer.Lease, []buffer.Outcome, bool, time.Duration) {}

// observer is told by distributor, claimer and worker, on behalf of the pipeline and its
// Observer.
type observer struct {
	Observer
	p *Pipeline
}

func (o observer) Counted(b buffer.Backlog, fresh bool, err error) { o.p.health.counted(b, fresh, err) }
func (o observer) Backpressure(err error)                          { o.p.health.backpressure(err) }
func (o observer) Recovered(address string)                        { o.p.recovered.add(address) }

func (o observer) Settled(l *buffer.Lease, outcomes []buffer.Outcome, sent bool, took time.Duration) {
	o.p.health.settled(outcomes, sent)
	o.Observer.Settled(l, outcomes, sent, took)
}
