//go:build !slim

package config

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// sqliteMissing is why this build cannot open a SQLite database; nil if it can.
var sqliteMissing error

func (p *Pipeline) openSQLite(owner string) (buffer.Buffer, error) {
	s := &p.Source
	return sqlite.Open(sqlite.Config{
		URL: s.URL.Reveal(), Table: s.Table, Pipeline: p.Name, Owner: owner, Archive: p.Archive.Table, ArchiveOff: p.Archive.Off,
		Ordered: p.ordered(), Claim: buffer.ClaimMode(p.Claim), Custom: s.Custom,
		Sinks: p.routes(), Unmatched: buffer.Unmatched(p.Unmatched), SharedRate: p.sharesRate(),
	})
}

func (p *Pipeline) migrateSQLite(ctx context.Context) ([]string, error) {
	s := &p.Source
	return sqlite.Migrate(ctx, s.URL.Reveal(), sqlite.SchemaConfig{Table: s.Table, Archive: p.Archive.Table, Custom: s.Custom.Is()})
}
