package postgres

import (
	"errors"
	"fmt"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
)

// Config configures a buffer. URL and Pipeline are required.
type Config struct {
	// URL is a PostgreSQL connection URL, postgres://user:password@host/db.
	URL string
	// Table is the buffer table, "outbox_events" if empty. It may be "schema.table"; otherwise the
	// search path finds it.
	Table string
	// Schema is where ledger and dead letters are; the table's if empty.
	Schema string
	// Pipeline names the pipeline in batches and dead letters.
	Pipeline string
	// Owner is written to the ledger with a lease, for people to read.
	Owner string
	// Archive is the table to which delivered events are copied as they are deleted; "" for none.
	Archive string
	// ArchiveOff is set if events are not copied any more on purpose: see [buffer.ArchiveMemory].
	ArchiveOff bool
	// Claim is how events are claimed; buffer.ClaimAuto if empty.
	Claim buffer.ClaimMode
	// Wake is how the relay learns of new events; buffer.WakeAuto if empty.
	Wake buffer.WakeMode
	// Ordered keeps order by key (`order: key`): no event is claimed while an earlier one of its key is in a
	// live batch. With Sinks, it is set if any of them is Ordered, and each sink keeps its own order.
	Ordered bool
	// Sinks are those that events are routed to, if there are several: see Buffer.Route. nil: Claim claims for a single one.
	Sinks []buffer.Route
	// Unmatched says what becomes of an event that none of Sinks takes; "" is buffer.UnmatchedError.
	Unmatched buffer.Unmatched
	// Custom is the custom table; zero if the table is the relay's.
	Custom buffer.CustomTable
	// SharedRate: TakeToken will be called, and Check reports whether it can be.
	SharedRate bool
	// Supervisor is the age from which Diagnose reports vacuum blockers, and the privileges to end them.
	Supervisor buffer.SupervisorPolicy
	// Connections is how many connections the buffer has at most; 8 if 0. Each concurrent call takes one.
	Connections int
	// Pool has the connections, for buffers with the same URL; nil: the buffer has a pool of its own.
	Pool *Pool
}

func (c Config) withDefaults() Config {
	if c.Table == "" {
		c.Table = "outbox_events"
	}
	if c.Connections == 0 {
		c.Connections = 8
	}
	if c.Claim == "" {
		c.Claim = buffer.ClaimAuto
	}
	if c.Sinks != nil {
		c.Ordered = slices.ContainsFunc(c.Sinks, func(r buffer.Route) bool { return r.Ordered })
	}
	c.Supervisor = c.Supervisor.WithDefaults()
	return c
}

func (c Config) claimRequest() claimmode.Request {
	return claimmode.Request{Claim: c.Claim, Ordered: c.Ordered, Custom: c.Custom.Is()}
}

func (c Config) validate() error {
	if c.URL == "" || c.Pipeline == "" {
		return errors.New("postgres buffer: URL and Pipeline are required")
	}
	if err := c.claimRequest().Validate(); err != nil {
		return fmt.Errorf("postgres buffer: %w", err)
	}
	switch {
	case !c.Custom.Is():
	case c.Custom.ID == "":
		return errors.New("postgres buffer: Custom.ID is empty; expected the name of the table's primary key")
	case c.Ordered:
		return errors.New("postgres buffer: Ordered is set; events of a custom table have no key before they are projected")
	case c.Wake == buffer.WakeNotify:
		return fmt.Errorf(`postgres buffer: wake is %q; expected "auto" or "poll", because nothing is added to a custom table`, c.Wake)
	}
	return nil
}
