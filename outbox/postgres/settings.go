package postgres

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Every transaction begins with its settings. They are local to it, so that nothing
// is left on a pooled session. Among them are its bounds at the server, because a
// connection can hang without an error, and a machine can vanish in the middle of a
// pipelined transaction: the server would wait for the rest of it, with rows
// locked, until TCP gives up, which takes two hours by default.
const (
	shortly  = 15 * time.Second // a statement about one batch
	aWhile   = time.Minute      // one about many dead letters
	atLength = 10 * time.Minute // one that reads all there is
)

// reading is the first step of a transaction that locks no rows: its settings, name,
// value, name, value, ..., and for how long each of its statements may run. It waits
// for a lock for two thirds of that, unless the settings say otherwise, so that the
// error tells a lock from a statement that is slow. To compile a statement that is
// short, or waits for the disk, costs more than it brings.
func reading(limit time.Duration, pairs ...string) step {
	bounds := []string{"statement_timeout", milliseconds(limit), "idle_in_transaction_session_timeout", "30000", "jit", "off"}
	if !slices.Contains(pairs, "lock_timeout") {
		bounds = append(bounds, "lock_timeout", milliseconds(limit*2/3))
	}
	return settings(append(bounds, pairs...)...)
}

// writing is the same for one that locks rows. The user timeout is how long the
// client may leave unacknowledged what it was sent: one that was stopped while it
// read is cut off.
func (t *table) writing(limit time.Duration, pairs ...string) step {
	return reading(limit, append([]string{
		"tcp_keepalives_idle", "15", "tcp_keepalives_interval", "5", "tcp_keepalives_count", "3",
		"tcp_user_timeout", t.userTimeout,
	}, pairs...)...)
}

func settings(pairs ...string) step {
	var sql strings.Builder
	sql.WriteString("SELECT ")
	for i := range len(pairs) / 2 {
		if i > 0 {
			sql.WriteString(", ")
		}
		sql.WriteString("set_config($" + strconv.Itoa(2*i+1) + ", $" + strconv.Itoa(2*i+2) + ", true)")
	}
	return step{often: true, sql: sql.String(), args: pairs}
}

// inOrder makes the planner walk the primary key for ORDER BY id LIMIT n. Statistics
// taken while most rows were claimed make it believe that there are few
// unclaimed ones, so that it would rather read the whole backlog and sort it.
var inOrder = []string{"enable_seqscan", "off", "enable_bitmapscan", "off", "enable_sort", "off"}

// generic is what statements that are prepared want, and find rows by a key.
var generic = []string{"enable_seqscan", "off", "enable_bitmapscan", "off", "plan_cache_mode", "force_generic_plan"}

func milliseconds(d time.Duration) string { return itoa(d.Milliseconds()) }
