package ledger

import (
	"strconv"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Numbering returns the numbering of a sequence: from pg_relation_filenode, as bigint, and pg_postmaster_start_time.
// Both are readable by every role. The timeline is not, on every managed service.
func Numbering(node, started []byte) string {
	if node == nil { // no sequence
		return ""
	}
	return strconv.FormatInt(pg.ReadInt8(node), 10) + "@" + strconv.FormatInt(pg.ReadTime(started).UnixMicro(), 10)
}
