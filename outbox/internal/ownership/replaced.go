package ownership

import (
	"fmt"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Looked is how many rows of a table that may have been the buffer are looked at.
const Looked = 10_000

// Replaced is the finding about a table, as SQL names it, that may have been the buffer events before another table got its name. It has rows among the first [Looked], of
// which so many have a group_id.
func Replaced(table, events string, rows, stamped int64) buffer.Finding {
	return buffer.Finding{
		Level: buffer.LevelWarning, Subject: "owner",
		Text: fmt.Sprintf("table %s has the columns of %s and rows (%d of the first %d, %d of them with a group_id, which a relay writes), and no pipeline owns it: was it the buffer before another table got its name? Nobody sends its rows",
			table, events, rows, Looked, stamped),
		Fix: "if they should be sent, see docs/troubleshooting.md#a-table-that-was-replaced; otherwise empty it, or drop its column group_id",
	}
}
