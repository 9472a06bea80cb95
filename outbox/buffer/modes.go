package buffer

// ClaimMode is how events become a batch, and how the ledger finds them again. It is stored
// with the buffer, because two modes on one table would lose events.
type ClaimMode string

// The claim modes.
const (
	// ClaimAuto is the best mode that table and database allow; the zero value means it too.
	ClaimAuto ClaimMode = "auto"
	// ClaimStamp writes the group_id on each event, and skips rows that are locked.
	ClaimStamp ClaimMode = "stamp"
	// ClaimRange leaves the events as they are: the ledger row has the ids of the batch.
	ClaimRange ClaimMode = "range"
)

// WakeMode is how a relay finds fresh events between two distributions.
type WakeMode string

// The wake modes.
const (
	// WakeAuto is WakeNotify if its trigger is installed, otherwise WakePoll; the zero value means it too.
	WakeAuto   WakeMode = "auto"
	WakePoll   WakeMode = "poll"   // by polling
	WakeNotify WakeMode = "notify" // a trigger on the buffer table notifies
)
