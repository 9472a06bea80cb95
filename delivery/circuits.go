package delivery

import (
	"context"
	"github.com/outboxrelay/relay/sink"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// circuits keep what is away from what works.
//
// While the sink as a whole is away nothing is claimed, so that the backlog stays
// unclaimed. That begins after two sends in a row that found no sink (openAfter). Then the
// sink's own Check is asked now and then, and when that is content a single batch is
// let through for a trial, for a sink that answers may still take nothing. A send
// that goes through ends it.
//
// An address that is away must not stop those that work: claiming goes on, batches
// for that address alone are put back unsent, and one of them at a time is sent
// for a trial.
//
// Either way one of the batches that wait is made due now and then (probe), and
// all of them once a trial went through (back): the waits in the ledger are for
// the case that nobody is left who knows.
type circuits struct {
	// back hears of an address that takes batches again, "" of the sink.
	back func(address string)
	// aways counts away; read without the lock, for the usual case that it is 0.
	aways atomic.Int32

	mu    sync.Mutex
	sink  circuit
	pause time.Time // the sink asked for it (Retry-After): nothing before
	away  map[string]*circuit
}

const checkTimeout = 5 * time.Second

// failed hears that a send found the address away, "" the sink as a whole. waited
// tells that the batch was put back for an outage before.
func (c *circuits) failed(address string, waited bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if asked := now.Add(retryAfter(err)); asked.After(c.pause) {
		c.pause = asked // nor does a send that was under way end it sooner
		c.sink.err = err
	}
	c.circuit(address).fail(now, waited, err)
}

// circuit returns the address's own, a new one if need be.
func (c *circuits) circuit(address string) *circuit {
	if address == "" {
		return &c.sink
	}
	one := c.away[address]
	if one == nil {
		if c.away == nil {
			c.away = map[string]*circuit{}
		}
		one = &circuit{}
		c.away[address] = one
		c.aways.Store(int32(len(c.away))) //nolint:gosec // bounded by the batches that wait
	}
	return one
}

// took hears that the address took events, "" the sink any at all; waited as for
// failed. It tells whether that ended an outage.
func (c *circuits) took(address string, waited bool) (ended bool) {
	if address != "" && !waited && c.aways.Load() == 0 {
		return false
	}
	news := false
	c.mu.Lock()
	if address == "" {
		ended, news = c.sink.took()
	} else if one := c.away[address]; one != nil {
		ended, news = one.took()
	}
	c.mu.Unlock()
	if ended || news || waited {
		c.back(address)
	}
	return ended
}

// try tells whether a batch for the address alone may be sent: there is no outage,
// or this is the trial. atMost is how long that may take.
func (c *circuits) try(address string, atMost time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	one, now := c.away[address], time.Now()
	switch {
	case one == nil || !one.open():
		return true
	case !one.due(now):
		return false
	}
	one.trial = now.Add(atMost)
	return true
}

// isAway tells whether a mixed batch had better go without the events of the
// address: it is away, and finding that out again may take a send's whole time.
func (c *circuits) isAway(address string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.away[address]
	return one != nil && one.open() && suspect(one.err)
}

// forgotten is how long an address that is away is remembered when nothing waits for
// it: another process may have seen it come back.
const forgotten = time.Minute

// probe says for which of the addresses that batches wait for it is time for a
// trial.
func (c *circuits) probe(waitedFor []string) (due []string) {
	var unheard []string
	c.mu.Lock()
	now := time.Now()
	wanted := make(map[string]struct{}, len(waitedFor))
	for _, address := range waitedFor {
		wanted[address] = struct{}{}
		if now.Before(c.pause) {
			continue
		}
		switch isDue, vain := c.circuit(address).probe(now); {
		case vain:
			unheard = append(unheard, address)
		case isDue:
			due = append(due, address)
		}
	}
	for address, one := range c.away {
		if _, ok := wanted[address]; !ok && (one.failures == 0 || now.Sub(one.failedAt) > forgotten) {
			delete(c.away, address)
		}
	}
	c.aways.Store(int32(len(c.away))) //nolint:gosec // as above
	c.mu.Unlock()
	for _, address := range unheard {
		c.back(address)
	}
	return due
}

// allow returns how many batches may be claimed: any number, 1 for a trial, or 0.
func (c *circuits) allow(ctx context.Context, s sink.Sink) int {
	now := time.Now()
	c.mu.Lock()
	open, paused, early := c.sink.open(), now.Before(c.pause), now.Before(c.sink.until)
	c.mu.Unlock()
	switch {
	case paused || open && early:
		return 0
	case !open:
		return math.MaxInt
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := s.Check(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sink.until = time.Now().Add(trials.After(c.sink.failures))
	if err != nil {
		c.sink.err = err
		return 0
	}
	return 1
}

// since tells why a batch that was claimed then had better not be sent now: the sink
// asked for a pause, which lasts so long yet, or it was found away since. What was
// claimed after that is the trial. nil: send it.
func (c *circuits) since(claimed time.Time) (pause time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch pause = time.Until(c.pause); {
	case pause > 0:
		return pause, c.sink.err
	case c.sink.open() && claimed.Before(c.sink.failedAt) && !claimed.IsZero():
		return 0, c.sink.err
	}
	return 0, nil
}

// outage is why nothing is claimed; nil when that is not so.
func (c *circuits) outage() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sink.open() || time.Now().Before(c.pause) {
		return c.sink.err
	}
	return nil
}
