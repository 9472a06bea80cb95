//go:build unix

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"
)

// faults counts faults by kind.
type faults struct {
	mu    *sync.Mutex
	times map[string]int
}

func newFaults() faults { return faults{mu: new(sync.Mutex), times: map[string]int{}} }

func (f *faults) add(kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.times[kind]++
}

func (f *faults) kinds() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.times))
}

func (f *faults) count(kind string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.times[kind]
}

const (
	relayKilled    = "relay: SIGKILL"
	postgresKilled = "PostgreSQL: SIGKILL"
	redisKilled    = "Redis: SIGKILL"
)

// fault is one fault of one target.
type fault struct {
	kind   string
	target string // nothing else is done to it meanwhile
	do     func(context.Context) error
}

// director injects a fault about every half second until ctx is done. It returns when
// all of them are over and everything is healthy again.
func (r *run) director(ctx context.Context) error {
	var (
		rng   = rand.New(rand.NewPCG(r.seed, 0))
		mu    sync.Mutex
		busy  = map[string]bool{}
		under sync.WaitGroup
		errs  = make(chan error, 1)
	)
	take := func(target string) bool {
		mu.Lock()
		defer mu.Unlock()
		if busy[target] {
			return false
		}
		busy[target] = true
		return true
	}
	free := func(target string) {
		mu.Lock()
		defer mu.Unlock()
		delete(busy, target)
	}
	defer under.Wait()
	whole := context.WithoutCancel(ctx) // a fault that was begun is also ended
	for pause(ctx, time.Duration(250+rng.IntN(500))*time.Millisecond) {
		select {
		case err := <-errs:
			return err
		default:
		}
		for _, p := range r.relays {
			if take(p.name) {
				what, err := p.died()
				free(p.name)
				if err != nil {
					return err
				}
				if what != "" {
					r.violation("%s", what)
				}
			}
		}
		f := r.draw(rng)
		if !take(f.target) {
			continue
		}
		r.faults.add(f.kind)
		under.Go(func() {
			defer free(f.target)
			if err := f.do(whole); err != nil {
				select {
				case errs <- fmt.Errorf("%s (%s): %w", f.kind, f.target, err):
				default:
				}
			}
		})
	}
	under.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// draw draws one fault, including all its random values, so that the seed decides.
func (r *run) draw(rng *rand.Rand) fault {
	p := r.relays[rng.IntN(len(r.relays))]
	span := func(from, to int) time.Duration { return time.Duration(from+rng.IntN(to-from)) * time.Millisecond }
	down := span(0, 2000)
	if rng.IntN(2) == 0 {
		down = 0
	}
	switch n := rng.IntN(100); {
	case n < 26:
		return fault{relayKilled, p.name, func(ctx context.Context) error { return p.killAndStart(ctx, down) }}
	case n < 34:
		return r.stopped(p, span(2500, 7000))
	case n < 40:
		return fault{"relay: SIGTERM", p.name, func(ctx context.Context) error { return r.endAndStart(ctx, p, down) }}
	case n < 42:
		return restart("PostgreSQL: fast restart", "postgres", r.postgres.Stop, r.postgres.Start, down)
	case n < 44:
		return restart(postgresKilled, "postgres", r.postgres.Kill, r.postgres.Start, down)
	case n < 47:
		return restart("Redis: SIGTERM", "redis", r.redis.Stop, r.redis.Start, down)
	case n < 50:
		return restart(redisKilled, "redis", r.redis.Kill, r.redis.Start, down)
	case n < 52:
		stop := func() error { r.nats.Stop(); return nil }
		return restart("NATS: restart", "nats", stop, func(context.Context) error { return r.nats.Start() }, down)
	case n < 55:
		return r.badAPI(rng, span(500, 6000))
	case n < 60:
		return r.cut(p, rng, span(200, 3000))
	default:
		return r.badConnection(p, rng, span(500, 4000))
	}
}

func restart(kind, target string, stop func() error, start func(context.Context) error, down time.Duration) fault {
	return fault{kind, target, func(ctx context.Context) error {
		if err := stop(); err != nil {
			return err
		}
		pause(ctx, down)
		return start(ctx)
	}}
}

// badAPI: the API is down, or for a while it has no answer, refuses everything, limits the rate or is slow. In a long run it is
// away for a minute at times.
func (r *run) badAPI(rng *rand.Rand, lasts time.Duration) fault {
	if isLong() && rng.IntN(10) == 0 {
		lasts += time.Minute
	}
	answers := func(kind string, status int, delay time.Duration) fault {
		return fault{kind, "api", func(ctx context.Context) error {
			r.api.answers(status, delay)
			pause(ctx, lasts)
			r.api.answers(0, 0)
			return nil
		}}
	}
	switch rng.IntN(5) {
	case 0:
		return restart("API: restart", "api", r.api.stop, func(context.Context) error { return r.api.start() }, lasts)
	case 1:
		return answers("API: 503", http.StatusServiceUnavailable, 0)
	case 2:
		return answers("API: refuses everything", http.StatusBadRequest, 0)
	case 3:
		return answers("API: 429", http.StatusTooManyRequests, 0)
	default:
		return answers("API: slow", 0, time.Duration(200+rng.IntN(3000))*time.Millisecond)
	}
}

func (p *relay) killAndStart(ctx context.Context, down time.Duration) error {
	if err := p.kill(); err != nil {
		return err
	}
	pause(ctx, down)
	return p.start()
}

// stopped: a process is stopped beyond its leases, and continued.
func (r *run) stopped(p *relay, stopped time.Duration) fault {
	return fault{"relay: SIGSTOP, SIGCONT", p.name, func(ctx context.Context) error {
		if err := p.signal(syscall.SIGSTOP); err != nil {
			return err
		}
		pause(ctx, stopped)
		return p.signal(syscall.SIGCONT)
	}}
}

func (r *run) endAndStart(ctx context.Context, p *relay, down time.Duration) error {
	status, err := p.end()
	switch {
	case err != nil:
		r.violation("%s after SIGTERM: %v\n%s", p.name, err, p.said())
	case status == 0:
		r.faults.add("relay: exit status 0 after SIGTERM")
	case status == 1 && p.ranOut():
		r.faults.add("relay: exit status 1 after SIGTERM, shutdown_timeout ran out")
	case status == 1 && p.leftBatch():
		r.faults.add("relay: exit status 1 after SIGTERM, PostgreSQL was away")
	default:
		r.violation("%s: exit status %d after SIGTERM\n%s", p.name, status, p.said())
	}
	pause(ctx, down)
	return p.start()
}

func (r *run) server(rng *rand.Rand) string {
	return []string{"postgres", "redis", "nats", "api"}[rng.IntN(4)]
}

// cut closes the connections of a relay to a server and refuses new ones for a while.
func (r *run) cut(p *relay, rng *rand.Rand, lasts time.Duration) fault {
	server := r.server(rng)
	return fault{"wire: cut and refused", p.name + " " + server, func(ctx context.Context) error {
		if err := p.proxies.send(order{Do: "off", Proxy: server}); err != nil {
			return err
		}
		pause(ctx, lasts)
		return p.proxies.send(order{Do: "on", Proxy: server})
	}}
}

// badConnection disturbs the connection between a relay and a server for a while, in
// one direction, for all connections or half of them.
func (r *run) badConnection(p *relay, rng *rand.Rand, lasts time.Duration) fault {
	server := r.server(rng)
	toxic := struct {
		Name       string         `json:"name"`
		Type       string         `json:"type"`
		Stream     string         `json:"stream"`
		Toxicity   float64        `json:"toxicity"`
		Attributes map[string]int `json:"attributes"`
	}{
		Name: "fault", Stream: []string{"upstream", "downstream"}[rng.IntN(2)], Toxicity: []float64{0.5, 1}[rng.IntN(2)],
	}
	var what string
	switch rng.IntN(8) {
	case 0, 1:
		what, toxic.Type = "hangs, then is cut", "timeout"
		toxic.Attributes = map[string]int{"timeout": 0}
	case 2:
		what, toxic.Type = "hangs, ends by itself", "timeout"
		toxic.Attributes = map[string]int{"timeout": 100 + rng.IntN(2500)}
	case 3:
		what, toxic.Type = "slow answers", "latency"
		toxic.Attributes = map[string]int{"latency": 20 + rng.IntN(600), "jitter": rng.IntN(300)}
	case 4:
		what, toxic.Type = "little bandwidth", "bandwidth"
		toxic.Attributes = map[string]int{"rate": 2 + rng.IntN(100)}
	case 5:
		what, toxic.Type = "closes late", "slow_close"
		toxic.Attributes = map[string]int{"delay": 200 + rng.IntN(2000)}
	case 6:
		what, toxic.Type = "reset by peer", "reset_peer"
		toxic.Attributes = map[string]int{"timeout": rng.IntN(500)}
	default:
		what, toxic.Type = "cut in mid-request", "limit_data"
		toxic.Attributes = map[string]int{"bytes": 1 + rng.IntN(60_000)}
	}
	line, err := json.Marshal(toxic)
	return fault{"wire: " + what, p.name + " " + server, func(ctx context.Context) error {
		if err != nil {
			return err
		}
		if err := p.proxies.send(order{Do: "add", Proxy: server, Toxic: line}); err != nil {
			return err
		}
		pause(ctx, lasts)
		return p.proxies.send(order{Do: "remove", Proxy: server, Name: "fault"})
	}}
}
