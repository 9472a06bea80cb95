package ledger

import (
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Numbering returns which ids the table and its sequence hand out: the oid of the table that has the name, as bigint, and of the
// sequence pg_relation_filenode, as bigint, and pg_postmaster_start_time. Every role can read them. The timeline is not readable
// on every managed service.
func (t *Tables) Numbering(oid, node, started []byte) string {
	named := pg.ReadInt8(oid)
	if named != t.OID {
		t.replaced.Store(true)
	}
	if node == nil { // no sequence
		return ""
	}
	return pg.Int(named) + "/" + pg.Int(pg.ReadInt8(node)) + "@" + pg.Int(pg.ReadTime(started).UnixMicro())
}

// Replaced reports whether another table was seen under the buffer's name. Its sequence is another one too, perhaps.
func (t *Tables) Replaced() bool { return t.replaced.Load() }
