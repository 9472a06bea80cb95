package buffer

import (
	"fmt"
	"strings"
	"time"
)

// VacuumBlocker holds back what vacuum may take away: dead rows that were deleted since its
// snapshot stay, in every table of its database, and whoever reads has to walk over
// them. A VacuumBlocker is one of three kinds, which [BlockerKind] lists.
type VacuumBlocker struct {
	Kind BlockerKind
	// Name is a prepared transaction's gid or a replication slot's name; "" for a
	// transaction.
	Name string
	// PID is the server process that has it: of a transaction always, of a slot while
	// somebody reads it; 0 for none.
	PID int
	// Database, User and Application are whose it is, as far as the server says:
	// "" where it does not, or where this role may not see it.
	Database, User, Application string
	// Elsewhere: Database is another one of the same server. Each new snapshot
	// reaches back to what is being written there.
	Elsewhere bool
	// State is what the session says of itself ("idle in transaction"), "" for
	// a prepared transaction; "active" or "inactive" for a slot.
	State string
	// Backend is the kind of the server process, "client backend" or another; "" where
	// this role may not see it.
	Backend string
	// Superuser: User is one.
	Superuser bool
	// Own: it is a relay's, of this process or another, by its application_name.
	Own bool
	// StartedAt is when the session began, BeganAt when its transaction did, by the
	// database's clock; zero where that is not known. They tell a session from a later
	// one with the same PID.
	StartedAt, BeganAt time.Time
	// Age is how long ago it began, by the database's clock; 0 when that is not
	// known, as of most slots.
	Age time.Duration
	// AtLeast: Age is how long somebody saw it hold; it may be older.
	AtLeast bool
	// QueryAge is how long ago its last query began; 0 when that is not known.
	QueryAge time.Duration
	// Behind is how many transactions of the server began since its snapshot.
	Behind int64
	// Horizon is the transaction id that it holds; 0 for a slot that keeps WAL only.
	Horizon int64
	// Catalogs: of dead rows it keeps only the system catalogs'.
	Catalogs bool
	// WAL is how many bytes of it a slot keeps.
	WAL int64
}

// BlockerKind is the kind of a [VacuumBlocker].
type BlockerKind string

// The kinds.
const (
	BlockedByTransaction BlockerKind = "transaction"
	BlockedByPrepared    BlockerKind = "prepared transaction"
	BlockedBySlot        BlockerKind = "replication slot"
)

// BlockerKinds lists them.
func BlockerKinds() []BlockerKind {
	return []BlockerKind{BlockedByTransaction, BlockedByPrepared, BlockedBySlot}
}

// SupervisorPolicy says which holders are worth a word, and which are ended.
type SupervisorPolicy struct {
	// WarnAfter is the age from which on they are worth a word; 5 minutes when 0.
	WarnAfter time.Duration
	// TerminateAfter is the age from which on a transaction's session is ended, longer
	// than WarnAfter; 0: never.
	TerminateAfter time.Duration
	// Users and Applications are whose sessions may be ended, nil: anybody's who is
	// no superuser. A superuser's only when Users names it.
	Users, Applications []string
}

// WithDefaults fills in what is 0.
func (w SupervisorPolicy) WithDefaults() SupervisorPolicy {
	if w.WarnAfter == 0 {
		w.WarnAfter = 5 * time.Minute
	}
	return w
}

// farBehind is how many transactions there have to be since a holder's snapshot for it
// to be worth a word though nobody knows how old it is.
const farBehind = 100_000

// Beyond tells whether it is as old as that. One whose age is not known is so when it is
// a slot that nobody reads, or far behind.
func (h *VacuumBlocker) Beyond(age time.Duration) bool {
	return h.Age >= age || h.Age == 0 && (h.Unread() || h.Behind >= farBehind)
}

// Unread tells whether it is a slot that nobody reads.
func (h *VacuumBlocker) Unread() bool { return h.Kind == BlockedBySlot && h.State == "inactive" }

// String says in a line what it is, whose, and what it keeps.
func (h *VacuumBlocker) String() string {
	var facts []string
	add := func(format, value string) {
		if value != "" {
			facts = append(facts, fmt.Sprintf(format, value))
		}
	}
	if h.PID != 0 {
		facts = append(facts, fmt.Sprintf("pid %d", h.PID))
	}
	add("user %s", h.User)
	add("application %q", h.Application)
	add("database %s", h.Database)
	add("%s", h.State)
	if h.Kind == BlockedByTransaction && h.Backend != "client backend" {
		add("%s", h.Backend)
	}
	if h.QueryAge > 0 {
		facts = append(facts, "its last query began "+roughly(h.QueryAge)+" ago")
	}
	text := h.what() + " (" + strings.Join(facts, ", ") + ")"
	if h.Behind > 0 {
		text += fmt.Sprintf(", %d transactions behind", h.Behind)
	}
	return text + ": " + h.keeps()
}

// what is it, and how old.
func (h *VacuumBlocker) what() string {
	var age string
	switch {
	case h.AtLeast:
		age = " for at least " + roughly(h.Age)
	case h.Age > 0:
		age = " for " + roughly(h.Age)
	case h.Kind == BlockedByTransaction:
		age = " since a time that this role may not see"
	}
	switch {
	case h.Kind == BlockedByPrepared:
		return fmt.Sprintf("the transaction prepared as %q is open%s", h.Name, age)
	case h.Unread():
		return fmt.Sprintf("nobody reads the replication slot %q%s", h.Name, age)
	case h.Kind == BlockedBySlot:
		return fmt.Sprintf("the replication slot %q has not moved%s", h.Name, age)
	}
	return "a transaction is open" + age
}

func (h *VacuumBlocker) keeps() string {
	var keeps string
	switch {
	case h.Catalogs:
		keeps = "no dead row of the system catalogs younger than it goes away"
	case h.Horizon != 0:
		keeps = "no dead row younger than it goes away"
	}
	if h.WAL == 0 && keeps != "" {
		return keeps
	}
	const mega = 1 << 20
	wal := fmt.Sprintf("it keeps %d MB of WAL, and more until the disk is full", h.WAL/mega)
	if keeps == "" {
		return wal
	}
	return keeps + ", and " + wal
}

// roughly rounds for people.
func roughly(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
