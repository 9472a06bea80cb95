package buffer

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// VacuumBlocker keeps vacuum from removing dead rows: those that were deleted since its snapshot
// stay, in every table of its database, and queries have to walk over them.
type VacuumBlocker struct {
	Kind BlockerKind
	// Name is a prepared transaction's gid or a replication slot's name; "" for a transaction.
	Name string
	// PID is the server process of a transaction, or of a slot that is read; otherwise 0.
	PID int
	// Database, User and Application are those of the session; "" if unknown, or if this role
	// may not see them.
	Database, User, Application string
	// Elsewhere: Database is another one of the same server. Each new snapshot includes what
	// is being written there.
	Elsewhere bool
	// State is the session's ("idle in transaction"), "" for a prepared transaction; "active"
	// or "inactive" for a slot.
	State string
	// Backend is the kind of the server process, such as "client backend"; "" if this role may not see it.
	Backend string
	// Superuser: User is one.
	Superuser bool
	// IsRelay: the session belongs to a relay, in this process or another, by its application_name.
	IsRelay bool
	// StartedAt is when the session began, BeganAt when its transaction did, by the database's clock; zero if
	// unknown. They identify a session among others with the same PID.
	StartedAt, BeganAt time.Time
	// Age is the time since it began, by the database's clock; 0 if unknown, as for most slots.
	Age time.Duration
	// AtLeast: Age is the time since it was first observed; it may be older.
	AtLeast bool
	// QueryAge is the time since its last query began; 0 if unknown.
	QueryAge time.Duration
	// Behind is how many transactions of the server began since its snapshot.
	Behind int64
	// Horizon is the transaction id that it holds; 0 for a slot that keeps WAL only.
	Horizon int64
	// Catalogs: it keeps dead rows of system catalogs only.
	Catalogs bool
	// WAL is how many bytes of it a slot keeps.
	WAL int64
	// Locks are the tables of the relay's database in which a transaction may hold locks on rows, as "schema.table"; nil if there are none.
	Locks []string
	// NoInserts are the tables of the relay's database into which nobody else inserts until it ends, as "schema.table": it has locked them as a whole, or what wants to
	// lock them waits for it.
	NoInserts []string
	// Waits reports whether its session waits for a lock of another transaction. WaitsFor is the process of the one that it waits for in the end, behind others that wait
	// too; 0 if that is not known, as of a prepared transaction.
	Waits    bool
	WaitsFor int
	// Waiting is how many sessions wait for it, directly or behind others; those of relays do not count.
	Waiting int
	// Fix is how to end it: a statement, or what to do. Of a session that waits, it is how to end what it waits for.
	Fix string
}

// BlockerKind is the kind of a [VacuumBlocker].
type BlockerKind string

// The kinds.
const (
	BlockedByTransaction BlockerKind = "transaction"
	BlockedByPrepared    BlockerKind = "prepared transaction"
	BlockedBySlot        BlockerKind = "replication slot"
)

// BlockerKinds returns all kinds.
func BlockerKinds() []BlockerKind {
	return []BlockerKind{BlockedByTransaction, BlockedByPrepared, BlockedBySlot}
}

// SupervisorPolicy decides which vacuum blockers are logged, and which are terminated.
type SupervisorPolicy struct {
	// WarnAfter is the age from which a blocker is logged; 5 minutes when 0.
	WarnAfter time.Duration
	// TerminateAfter is the age from which a transaction's session is terminated, longer than
	// WarnAfter; 0: never.
	TerminateAfter time.Duration
	// Users and Applications are those whose sessions may be terminated; nil: any but a
	// superuser's. A superuser's session is terminated only if Users names it.
	Users, Applications []string
}

// WithDefaults sets the defaults of fields that are 0.
func (w SupervisorPolicy) WithDefaults() SupervisorPolicy {
	if w.WarnAfter == 0 {
		w.WarnAfter = 5 * time.Minute
	}
	return w
}

// farBehind is how many transactions behind a blocker of unknown age counts as old.
const farBehind = 100_000

// Beyond reports whether it is as old as age. If its age is unknown, it is if it is an inactive slot
// or far behind. One that blocks no vacuum is not.
func (h *VacuumBlocker) Beyond(age time.Duration) bool {
	return !h.OnlyLocks() && (h.Age >= age || h.Age == 0 && (h.Unread() || h.Behind >= farBehind))
}

// OnlyLocks reports whether it is a transaction that blocks no vacuum: others wait for it, or it has locked a table.
func (h *VacuumBlocker) OnlyLocks() bool { return h.Kind == BlockedByTransaction && h.Horizon == 0 }

// Hidden reports whether the role may not see since when a transaction is open, and what its session does.
func (h *VacuumBlocker) Hidden() bool { return h.Kind == BlockedByTransaction && h.Backend == "" }

// Unread reports whether it is a replication slot without a reader.
func (h *VacuumBlocker) Unread() bool { return h.Kind == BlockedBySlot && h.State == "inactive" }

// String returns one line: the blocker, its session, and the rows or WAL that it keeps.
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
	switch {
	case h.WaitsFor != 0:
		facts = append(facts, fmt.Sprintf("waits for a lock of pid %d", h.WaitsFor))
	case h.Waits:
		facts = append(facts, "waits for a lock")
	}
	text := h.subject() + " (" + strings.Join(facts, ", ") + ")"
	if h.Behind > 0 {
		text += fmt.Sprintf(", %d transactions behind", h.Behind)
	}
	text += ": " + h.keeps()
	if h.Locks != nil {
		text += "; it holds locks in " + tables(h.Locks)
	}
	return text
}

// tables names some tables.
func tables(names []string) string {
	switch n := len(names); {
	case n == 1:
		return "table " + names[0]
	case n > maxLocks:
		return fmt.Sprintf("tables %s and %d more", strings.Join(names[:maxLocks], ", "), n-maxLocks)
	}
	return "tables " + strings.Join(names, ", ")
}

// maxLocks is how many tables a text names.
const maxLocks = 5

// LockAge is the age from which a transaction with locks in a buffer table is called forgotten if nothing is claimed.
const LockAge = 20 * time.Second

// TableLockAge is the age from which a transaction that keeps others from inserting into a buffer table is named.
const TableLockAge = 5 * time.Second

// atLeast reports whether a transaction is so old, or of unknown age.
func (h *VacuumBlocker) atLeast(age time.Duration) bool {
	return h.Age >= age || h.Age == 0 && !h.AtLeast
}

// Root returns what a transaction waits for in the end, or the transaction itself if it does not wait; nil if what it waits for is not among all.
func Root(all []VacuumBlocker, h *VacuumBlocker) *VacuumBlocker {
	if !h.Waits {
		return h
	}
	for i := range all {
		if root := &all[i]; root.PID == h.WaitsFor && root.PID != 0 && root.Kind == BlockedByTransaction && !root.Waits {
			return root
		}
	}
	return nil
}

// Holds reports whether it may hold locks on rows of a table of the relay's database, "schema.table", itself.
func (h *VacuumBlocker) Holds(table string) bool {
	return !h.Elsewhere && slices.Contains(h.Locks, table)
}

// Locker returns the oldest of all that holds locks in a table, "schema.table", and is as old as [LockAge], or of unknown age; otherwise nil. It is not a relay's.
// Instead of a transaction that waits for another one, it is the one that this waits for, which need not hold locks in the table: see [VacuumBlocker.Holds].
func Locker(all []VacuumBlocker, table string) (oldest *VacuumBlocker) {
	for i := range all {
		if !all[i].Holds(table) {
			continue
		}
		h := Root(all, &all[i])
		if h == nil || h.IsRelay || !h.atLeast(LockAge) {
			continue
		}
		if oldest == nil || h.Age > oldest.Age {
			oldest = h
		}
	}
	return oldest
}

// TableLocker returns the oldest of all that keeps others from inserting into one of these tables, "schema.table", of which the first is the event table; nil if there is none.
// Holder points into all. It is as old as [TableLockAge], or of unknown age, does not wait itself, and is not a relay's.
func TableLocker(all []VacuumBlocker, tables ...string) *LockedError {
	var (
		oldest *VacuumBlocker
		at     int
	)
	for i := range all {
		h := &all[i]
		k := slices.IndexFunc(tables, func(name string) bool { return slices.Contains(h.NoInserts, name) })
		if k >= 0 && !h.Waits && !h.IsRelay && h.atLeast(TableLockAge) && (oldest == nil || h.Age > oldest.Age) {
			oldest, at = h, k
		}
	}
	if oldest == nil {
		return nil
	}
	return &LockedError{Table: tables[at], Holder: oldest, Text: oldest.LockText(tables[at], at == 0, ""), Fix: oldest.Fix}
}

// LockText says that it has locked a table, "schema.table", as a whole. events: it is the event table. role is the relay's, which may not see since when; "": this role.
func (h *VacuumBlocker) LockText(table string, events bool, role string) string {
	text := "table " + table + " is locked: statements wait for "
	if h.Kind == BlockedByPrepared {
		text += fmt.Sprintf("the transaction prepared as %q, which is open for %s", h.Name, roughly(h.Age))
	} else {
		facts := []string{"user " + h.User, fmt.Sprintf("application %q", h.Application)}
		if h.State != "" {
			facts = append(facts, h.State)
		}
		text += fmt.Sprintf("pid %d (%s), whose transaction is open", h.PID, strings.Join(facts, ", "))
		switch {
		case h.AtLeast:
			text += " for at least " + roughly(h.Age)
		case h.Age > 0:
			text += " for " + roughly(h.Age)
		case role != "":
			text += "; since when, role " + role + " may not see without GRANT pg_read_all_stats TO " + role
		default:
			text += "; since when, this role may not see"
		}
	}
	if events {
		text += "; the application cannot insert events until it ends"
	}
	return text
}

// subject returns the blocker and its age.
func (h *VacuumBlocker) subject() string {
	var age string
	switch {
	case h.AtLeast:
		age = " for at least " + roughly(h.Age)
	case h.Age > 0:
		age = " for " + roughly(h.Age)
	case h.Kind == BlockedByTransaction:
		age = " (this role may not see since when)"
	}
	switch {
	case h.Kind == BlockedByPrepared:
		return fmt.Sprintf("the transaction prepared as %q is open%s", h.Name, age)
	case h.Unread():
		return fmt.Sprintf("the replication slot %q has no reader%s", h.Name, age)
	case h.Kind == BlockedBySlot:
		return fmt.Sprintf("the replication slot %q has not moved%s", h.Name, age)
	}
	return "a transaction is open" + age
}

func (h *VacuumBlocker) keeps() string {
	var keeps string
	switch {
	case h.OnlyLocks() && len(h.NoInserts) > 0:
		return "nothing can be inserted into " + tables(h.NoInserts) + " until it ends"
	case h.OnlyLocks():
		return "other sessions wait for it"
	case h.Catalogs:
		keeps = "vacuum keeps the younger dead rows of the system catalogs"
	case h.Horizon != 0:
		keeps = "vacuum keeps all younger dead rows"
	}
	if h.WAL == 0 && keeps != "" {
		return keeps
	}
	const mega = 1 << 20
	wal := fmt.Sprintf("it keeps %d MB of WAL, which grows until the disk is full", h.WAL/mega)
	if keeps == "" {
		return wal
	}
	return keeps + ", and " + wal
}

// roughly rounds a duration for a message.
func roughly(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
