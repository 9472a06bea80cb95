//go:build unix

package chaos

import (
	"cmp"
	"context"
	"flag"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"golang.org/x/sync/errgroup"

	// The test builds the relay from the tree. This import makes `go test` see changes.
	_ "github.com/outboxrelay/relay/internal/admin"
	_ "github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/testserver"
)

var (
	lasts = flag.Duration("chaos.for", 25*time.Second, "how long faults are made")
	seed  = flag.Uint64("chaos.seed", 0, "what faults and transactions are drawn from; 0: any")
	rate  = flag.Int("chaos.rate", 0, "events/s to commit; 0: 9000, and 1000 in a run of less than five minutes")
)

func TestMain(m *testing.M) {
	if os.Getenv(beProxies) != "" {
		serveProxies()
		return
	}
	logging.Disable() // go-redis would log every connection that is cut
	testserver.Main(m)
}

const (
	relays = 3
	settle = 15 * time.Minute // limit for the rest after the faults
	stuck  = 90 * time.Second // without any progress then
)

// TestChaos checks that nothing is lost or duplicated, no matter what is killed.
func TestChaos(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	t.Logf("seed %d: %s", r.seed, r.again())
	began := time.Now()

	reading, endReading := context.WithCancel(t.Context())
	defer endReading()
	var readers errgroup.Group
	for _, read := range []func(context.Context) error{r.readRedis, r.readShop, r.readFan, r.watchNotifications, r.progress} {
		readers.Go(func() error { return read(reading) })
	}

	making, endMaking := context.WithTimeout(t.Context(), *lasts)
	defer endMaking()
	var makers errgroup.Group
	for i := range producers {
		makers.Go(func() error { return r.newProducer(i).Run(making) })
	}
	makers.Go(func() error { return r.director(making) })
	if err := makers.Wait(); err != nil {
		r.violation("%v", err)
	}
	t.Logf("faults and producers ended after %v", time.Since(began).Round(time.Second))

	r.drain(t.Context())
	r.notify(t.Context())
	for _, p := range r.relays {
		if status, err := p.end(); err != nil || status != 0 {
			r.violation("%s ended with status %d when it had nothing to do; want 0: %v", p.name, status, err)
		}
	}
	r.readToTheEnd(t.Context())
	endReading()
	if err := readers.Wait(); err != nil {
		r.violation("%v", err)
	}
	audits := r.audit(t.Context())
	r.checkWays(t.Context())
	r.report(audits, time.Since(began))
}

func pickSeed() uint64 { return cmp.Or(*seed, rand.Uint64()>>1) }

// isLong reports whether the run is that of make chaos, not a part of go test.
func isLong() bool { return *lasts >= 5*time.Minute }

func eventsPerSecond() int {
	if *rate == 0 && !isLong() {
		return 1000
	}
	return cmp.Or(*rate, 9000)
}
