package config

import (
	"github.com/outboxrelay/relay/outbox/postgres"
)

// maxShared bounds the connections that pipelines share. More would not make a database faster, and max_connections is
// 100 by default.
const maxShared = 32

// connections is how many connections the pipeline's buffer has at most: one for each worker, and some for leases, counts
// and the status.
func (p *Pipeline) connections() int {
	workers := 4
	for _, one := range p.PerSink() {
		workers += one.Workers
	}
	return workers
}

// pools returns a pool for each URL of PostgreSQL that several pipelines have. It connects to nothing.
func (c *Config) pools() map[string]*postgres.Pool {
	type demand struct{ pipelines, most, all int }
	demands := map[string]demand{}
	for i := range c.Pipelines {
		p := &c.Pipelines[i]
		if p.Source.Driver == "postgres" {
			d := demands[p.Source.URL.Reveal()]
			demands[p.Source.URL.Reveal()] = demand{d.pipelines + 1, max(d.most, p.connections()), d.all + p.connections()}
		}
	}
	pools := map[string]*postgres.Pool{}
	for url, d := range demands {
		if d.pipelines == 1 {
			continue
		}
		// A pipeline alone may have more. If the URL is wrong, opening the buffer says so, at its place.
		if pool, err := postgres.NewPool(url, max(d.most, min(d.all, maxShared))); err == nil {
			pools[url] = pool
		}
	}
	return pools
}
