package sqlite

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// The table names in the statements of this package; see names.
const (
	defaultTable   = "outbox_events"
	defaultArchive = "outbox_archive"
)

// Config says which buffer to open. URL and Pipeline are required.
type Config struct {
	// URL is sqlite:///absolute/path.db. Migrate creates the file, Open does not.
	URL string
	// Table is the buffer table, "outbox_events" when empty.
	Table string
	// Pipeline is the name of the pipeline in batches and dead letters.
	Pipeline string
	// Owner is written to the ledger with each lease, for people to read.
	Owner string
	// Archive is the table that delivered events are copied to when they are deleted; "" for none.
	Archive string
	// ArchiveOff is set if events are not copied any more on purpose: see [buffer.ArchiveMemory].
	ArchiveOff bool
	// Claim is how events are claimed; buffer.ClaimAuto when empty.
	Claim buffer.ClaimMode
	// Ordered keeps order by key (`order: key`): no event is claimed while an earlier one of its key
	// is in a live batch. With Sinks, it is set if any of them is Ordered, and each sink keeps its own order.
	Ordered bool
	// Sinks are those that events are routed to, if there are several: see Buffer.Route. nil: Claim claims for a single one.
	Sinks []buffer.Route
	// Unmatched says what becomes of an event that none of Sinks takes; "" is buffer.UnmatchedError.
	Unmatched buffer.Unmatched
	// Custom describes a custom table; zero: the table is the relay's own.
	Custom buffer.CustomTable
	// SharedRate makes Check look for the table that TakeToken needs.
	SharedRate bool
}

func (c Config) withDefaults() Config {
	c.Table, c.Claim = cmp.Or(c.Table, defaultTable), cmp.Or(c.Claim, buffer.ClaimAuto)
	if c.Sinks != nil {
		c.Ordered = slices.ContainsFunc(c.Sinks, func(r buffer.Route) bool { return r.Ordered })
	}
	return c
}

func (c Config) validate() error {
	if c.URL == "" || c.Pipeline == "" {
		return errors.New("sqlite buffer: URL and Pipeline are required")
	}
	if err := c.claimRequest().Validate(); err != nil {
		return fmt.Errorf("sqlite buffer: %w", err)
	}
	if err := c.validateCustom(); err != nil {
		return fmt.Errorf("sqlite buffer: custom table %s: %w", db.Quote(c.Table), err)
	}
	return validTables(c.Table, c.Archive)
}

func (c Config) claimRequest() claimmode.Request {
	return claimmode.Request{Claim: c.Claim, Ordered: c.Ordered, Custom: c.Custom.Is()}
}

func (c Config) validateCustom() error {
	switch {
	case !c.Custom.Is():
		return nil
	case c.Custom.ID == "" || strings.ContainsRune(c.Custom.ID, 0):
		return fmt.Errorf("source.id is %q; expected the column of its primary key", c.Custom.ID)
	case c.Custom.Cursor != "":
		return fmt.Errorf("source.cursor is %q; expected none, because an INTEGER PRIMARY KEY grows", c.Custom.Cursor)
	case c.Ordered:
		return errors.New("order: key is not supported with source.project; use order: none")
	}
	return nil
}

// pragmas returns what a connection that writes begins with. SQLite enforces the foreign keys of custom
// tables only if each connection asks for it.
func (c Config) pragmas() []string {
	if c.Custom.Is() {
		return []string{"foreign_keys(1)"}
	}
	return nil
}

func validTables(table, archive string) error {
	if strings.EqualFold(table, archive) {
		return fmt.Errorf("sqlite buffer: archive table is %q; expected another table than the buffer", archive)
	}
	return errors.Join(validTable(table), validTable(archive))
}

func validTable(name string) error {
	if strings.ContainsRune(name, 0) || strings.HasPrefix(strings.ToLower(name), "sqlite_") || strings.HasSuffix(name, queueSuffix) {
		return fmt.Errorf("sqlite buffer: table is %q; expected a name without NUL, that does not begin with sqlite_ or end with %q", name, queueSuffix)
	}
	return nil
}
