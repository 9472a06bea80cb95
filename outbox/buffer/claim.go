package buffer

// ClaimMode is how the events of a batch become one batch's, and how they are found
// again. It is stored with the buffer, because two ways on one table lose track of
// each other.
type ClaimMode string

// The claim modes.
const (
	// ClaimAuto is the best that table and database allow; the zero value means it too.
	ClaimAuto ClaimMode = "auto"
	// ClaimStamp stamps the group_id on each event, and locks what it picks with
	// SKIP LOCKED.
	ClaimStamp ClaimMode = "stamp"
	// ClaimRange leaves the events as they are: the batch's ledger row says which ids
	// it holds.
	ClaimRange ClaimMode = "range"
)
