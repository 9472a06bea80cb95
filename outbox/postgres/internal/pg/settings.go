package pg

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Every transaction begins with its settings. They are local to it, so that nothing stays
// on a session that a pooler lends to others; see session for connections without one. Among them are its bounds at the server: a connection can hang
// without an error, and a machine can vanish in the middle of a pipelined transaction. The
// server would then wait for the rest of it, with rows locked, until TCP gives up, which
// takes two hours by default.
const (
	ShortTimeout = 15 * time.Second // a statement about one batch
	BulkTimeout  = time.Minute      // one about many dead letters
	ScanTimeout  = 10 * time.Minute // one that reads a whole table
)

// SearchPath is that of every transaction but those with a statement of the user's (see UserTx), or with the role's own (see OwnPathTx). A role that may create
// objects in a schema of the role's own path could otherwise have the relay call their functions: an exact match there
// wins over a polymorphic function of pg_catalog. Until it is set, a statement names the schema of each function,
// operator and type.
const SearchPath = "pg_catalog, pg_temp"

// ReadTx is the first step of a transaction that locks no rows: its settings (name, value,
// name, value, ...) and the limit of each of its statements. A statement waits for a lock
// for two thirds of that, unless the settings say otherwise, so that the error
// distinguishes a lock from a slow statement. JIT is off: compiling a short statement, or
// one that waits for the disk, costs more than it saves.
func ReadTx(limit time.Duration, settings ...string) Step {
	return bounded(limit, append([]string{"search_path", SearchPath}, settings...))
}

func bounded(limit time.Duration, settings []string) Step {
	bounds := []string{"statement_timeout", Milliseconds(limit), "idle_in_transaction_session_timeout", "30000", "jit", "off"}
	if !slices.Contains(settings, "lock_timeout") {
		bounds = append(bounds, "lock_timeout", Milliseconds(limit*2/3))
	}
	return Step{Settings: append(bounds, settings...)}
}

// BatchTx is WriteTx for prepared statements about one batch, which find rows by a key, and a commit that waits for the
// disk.
func (db *DB) BatchTx(limit time.Duration, settings ...string) Step {
	return db.WriteTx(limit, append(slices.Clone(batchSettings), settings...)...)
}

// WriteTx is ReadTx for a transaction that locks rows. tcp_user_timeout is how long the
// client may leave data unacknowledged: a client that was stopped while it read is
// disconnected.
func (db *DB) WriteTx(limit time.Duration, settings ...string) Step {
	return ReadTx(limit, append(db.keepAlive(), settings...)...)
}

// UserTx is WriteTx for a transaction with a statement of the user's, which has another search path.
func (db *DB) UserTx(limit time.Duration, path string, settings ...string) Step {
	return bounded(limit, append(append(db.keepAlive(), "search_path", path), settings...))
}

// OwnPathTx is WriteTx with the search path of the role and the database. What is run in it names the schema of each function, operator and type.
func (db *DB) OwnPathTx(limit time.Duration) Step { return bounded(limit, db.keepAlive()) }

func (db *DB) keepAlive() []string {
	return []string{
		"tcp_keepalives_idle", "15", "tcp_keepalives_interval", "5", "tcp_keepalives_count", "3",
		"tcp_user_timeout", db.UserTimeout(),
	}
}

// SetLocal sets the settings (name, value, name, value, ...) until the transaction ends. Unlike Step.Settings it may be
// anywhere in it.
func SetLocal(settings ...string) Step {
	var sql strings.Builder
	sql.WriteString("SELECT ")
	for i := range len(settings) / 2 {
		if i > 0 {
			sql.WriteString(", ")
		}
		sql.WriteString("pg_catalog.set_config($" + strconv.Itoa(2*i+1) + ", $" + strconv.Itoa(2*i+2) + ", true)")
	}
	return Step{Prepare: true, SQL: sql.String(), Args: settings}
}

var (
	// PlanByPrimaryKey makes the planner walk the primary key for ORDER BY id LIMIT n.
	// Statistics taken while most rows were claimed make it expect few unclaimed ones, so
	// that it would rather read and sort the whole backlog.
	PlanByPrimaryKey = []string{"enable_seqscan", "off", "enable_bitmapscan", "off", "enable_sort", "off"}

	// batchSettings are for prepared statements about one batch.
	batchSettings = []string{
		"synchronous_commit", "on", "plan_cache_mode", "force_generic_plan",
		"enable_seqscan", "off", "enable_bitmapscan", "off", "enable_sort", "off",
	}

	// PlanGeneric is for prepared statements that find rows by a key.
	PlanGeneric = []string{"enable_seqscan", "off", "enable_bitmapscan", "off", "plan_cache_mode", "force_generic_plan"}

	// PlanByKey makes the planner look each picked row up by its key, and the commit wait
	// for the disk. Statistics taken while all dead letters were open make it expect that
	// reading the whole table is as good.
	PlanByKey = []string{"synchronous_commit", "on", "enable_seqscan", "off", "enable_hashjoin", "off", "enable_mergejoin", "off"}
)
