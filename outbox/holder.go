package outbox

import "time"

// Holder holds back what vacuum may take away: dead rows that were deleted since its
// snapshot stay, in every table of its database, and whoever reads has to walk over
// them. A Holder is one of three kinds, which [HolderKind] lists.
type Holder struct {
	Kind HolderKind
	// Name is a prepared transaction's gid or a replication slot's name; "" for a
	// transaction.
	Name string
	// PID is the server process that has it: of a transaction always, of a slot while
	// somebody reads it; 0 for none.
	PID int
	// Database, User and Application are whose it is, as far as the server says:
	// "" where it does not, or where this role may not see it.
	Database, User, Application string
	// State is what the session says of itself ("idle in transaction"), "" for
	// a prepared transaction; "active" or "inactive" for a slot.
	State string
	// Superuser: User is one.
	Superuser bool
	// Age is how long ago it began, by the database's clock; 0 when that is not
	// known, as of a slot.
	Age time.Duration
	// QueryAge is how long ago its last query began; 0 when that is not known.
	QueryAge time.Duration
	// Behind is how many transactions of the server began since its snapshot.
	Behind int64
}

// HolderKind is the kind of a [Holder].
type HolderKind string

// The kinds.
const (
	HeldByTransaction HolderKind = "transaction"
	HeldByPrepared    HolderKind = "prepared transaction"
	HeldBySlot        HolderKind = "replication slot"
)
