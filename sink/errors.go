package sink

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

var (
	// ErrUnavailable is an outage of the sink, or of an address in it. It is not an attempt.
	ErrUnavailable = errors.New("sink is unavailable")
	// ErrMaybePoison is found, with ErrUnavailable, in an outage that the batch itself may
	// have caused: a 5xx, a time-out, a response that is cut off. If it keeps hitting one
	// batch while others are accepted, it counts as a rejection of that batch.
	ErrMaybePoison = errors.New("sink is unavailable, perhaps because of the batch")
	// ErrNotAccepted is found, with ErrUnavailable, in an outage whose answer says that nothing of the batch was
	// accepted: a 403, a 404. If it keeps hitting one batch while others are accepted, that batch is divided.
	ErrNotAccepted = errors.New("sink is unavailable, and accepted nothing of the batch")
	// ErrAskedToWait is found, with ErrUnavailable, in an outage whose answer asks to come back later, and says that nothing of the batch was
	// accepted: a 429. If it keeps hitting one batch while others are accepted, more often than by chance, that batch is divided, and an event
	// that is then alone waits without the others.
	ErrAskedToWait = errors.New("sink asks to come back later")
	// ErrMaybeAccepted is found, with ErrUnavailable, in an outage after which nobody knows what the sink accepted: there is no
	// response, or it cannot be read. Under another group_id a sink that knows batches by it would accept the events twice.
	ErrMaybeAccepted = errors.New("sink is unavailable, and may have accepted the batch")
	// ErrInProgress is found, with ErrMaybePoison and ErrMaybeAccepted, in an outage whose answer says that the sink is still at an
	// earlier send of the batch.
	ErrInProgress = errors.New("sink is still at an earlier send of the batch")
	// ErrProgram is found, with ErrUnavailable, in an outage that is not the server's: a program of the
	// configuration fails, on every event of the batch before anything is sent, or on the response.
	ErrProgram = errors.New("a program of the sink fails")
	// ErrAccess is found, with ErrUnavailable, in an outage that ends when somebody corrects the credentials, or their rights.
	ErrAccess = errors.New("sink does not accept the credentials")
	// ErrFull is found, with ErrUnavailable, in an outage that ends when the sink has space again.
	ErrFull = errors.New("sink is full")
	// ErrFenced is the error of a batch whose group_id a later owner has given up.
	ErrFenced = errors.New("group_id is fenced at the sink")
	// ErrTooLarge is found in the rejection of a batch for its size.
	ErrTooLarge = errors.New("too large")
	// ErrPermanent is a rejection for good: sending the same again cannot succeed.
	ErrPermanent = errors.New("refused for good")
)

// Permanent wraps err so that errors.Is finds ErrPermanent.
func Permanent(err error) error { return kindError{err, ErrPermanent} }

// TooLarge wraps err so that errors.Is finds ErrTooLarge.
func TooLarge(err error) error { return kindError{err, ErrTooLarge} }

// Unavailable wraps err so that errors.Is finds ErrUnavailable.
func Unavailable(err error) error { return kindError{err, ErrUnavailable} }

// Access wraps err so that errors.Is finds ErrAccess.
func Access(err error) error { return kindError{err, ErrAccess} }

// Full wraps err so that errors.Is finds ErrFull.
func Full(err error) error { return kindError{err, ErrFull} }

// MaybePoison wraps err so that errors.Is finds ErrUnavailable and ErrMaybePoison.
func MaybePoison(err error) error { return kindError{kindError{err, ErrMaybePoison}, ErrUnavailable} }

// NotAccepted wraps err so that errors.Is finds ErrUnavailable and ErrNotAccepted.
func NotAccepted(err error) error { return kindError{kindError{err, ErrNotAccepted}, ErrUnavailable} }

// AskedToWait wraps err so that errors.Is finds ErrUnavailable and ErrAskedToWait.
func AskedToWait(err error) error { return kindError{kindError{err, ErrAskedToWait}, ErrUnavailable} }

// MaybeAccepted wraps err so that errors.Is finds ErrUnavailable and ErrMaybeAccepted.
func MaybeAccepted(err error) error {
	return kindError{kindError{err, ErrMaybeAccepted}, ErrUnavailable}
}

// InProgress wraps err so that errors.Is finds ErrUnavailable, ErrMaybePoison, ErrMaybeAccepted and ErrInProgress.
func InProgress(err error) error {
	return MaybePoison(MaybeAccepted(kindError{err, ErrInProgress}))
}

// ProgramFailed wraps err so that errors.Is finds ErrProgram.
func ProgramFailed(err error) error { return kindError{err, ErrProgram} }

// kindError adds a kind to an error without adding to its text.
type kindError struct{ err, kind error }

func (e kindError) Error() string   { return e.err.Error() }
func (e kindError) Unwrap() []error { return []error{e.err, e.kind} }

// UnavailableError is an outage with a time. errors.Is finds ErrUnavailable in it.
type UnavailableError struct {
	Err error
	// RetryAfter is how long the sink asked to wait.
	RetryAfter time.Duration
}

func (e *UnavailableError) Error() string   { return e.Err.Error() }
func (e *UnavailableError) Unwrap() []error { return []error{e.Err, ErrUnavailable} }

// EventError is why one event of a batch was not accepted.
type EventError struct {
	// Index of the event in Batch.Events.
	Index int
	// Err wraps ErrUnavailable (its address is unavailable: not an attempt), ErrPermanent
	// (bury it at once), or neither (a rejection that may be retried).
	Err error
}

// BatchError names the events of a batch that were not accepted, each at most once; the others
// were.
type BatchError struct{ Events []EventError }

func (e *BatchError) Error() string {
	if len(e.Events) == 0 {
		return "no event was refused"
	}
	if len(e.Events) == 1 {
		return fmt.Sprintf("1 event was not accepted: %v", e.Events[0].Err)
	}
	return fmt.Sprintf("%d events were not accepted, the first: %v", len(e.Events), e.Events[0].Err)
}

// NewBatchError returns a *BatchError of these events, in order, or nil if there are none.
func NewBatchError(events []EventError) error {
	if len(events) == 0 {
		return nil
	}
	slices.SortFunc(events, func(a, b EventError) int { return a.Index - b.Index })
	return &BatchError{Events: events}
}

// Valid reports whether the error names only events of a batch of n, each with a reason.
func (e *BatchError) Valid(n int) bool {
	for _, event := range e.Events {
		if event.Index < 0 || event.Index >= n || event.Err == nil {
			return false
		}
	}
	return true
}

// KeyBlockedError is why a sink that keeps order did not send an event: an earlier one of its key
// was not accepted. errors.Is finds ErrUnavailable in it; it says nothing about the event's
// address.
type KeyBlockedError struct {
	// ID is the earlier event, Err why it was not accepted.
	ID  int64
	Err error
}

func (e *KeyBlockedError) Error() string {
	return fmt.Sprintf("not sent: event %d of the same key was not accepted: %v", e.ID, e.Err)
}

func (e *KeyBlockedError) Unwrap() []error { return []error{e.Err, ErrUnavailable} }

// SplitError asks to split the batch, because its parts cannot have one group_id. Nothing was
// sent. Each part gets a new group_id. A part without Err is sent soon, and neither an attempt nor an
// outage is counted; a part with Err is rejected, which is an attempt.
type SplitError struct {
	// Groups are the parts, at least two. Each event is in exactly one of them. Events without
	// an address have Err.
	Groups []Group
	// TooLarge: the reason is the size of the batch.
	TooLarge bool
}

func (e *SplitError) Error() string {
	return fmt.Sprintf("the batch has to be split into %d parts", len(e.Groups))
}

// NewSplitError asks for these groups, and for each rejected event alone.
func NewSplitError(groups []Group, rejected []EventError, tooLarge bool) *SplitError {
	slices.SortFunc(rejected, func(a, b EventError) int { return a.Index - b.Index })
	for _, e := range rejected {
		groups = append(groups, Group{Indexes: []int{e.Index}, Err: e.Err})
	}
	return &SplitError{Groups: groups, TooLarge: tooLarge}
}

// Valid reports whether there are at least two groups, and each of n events is in exactly one.
func (e *SplitError) Valid(n int) bool {
	seen := make([]bool, n)
	left := n
	for _, g := range e.Groups {
		for _, i := range g.Indexes {
			if i < 0 || i >= n || seen[i] {
				return false
			}
			seen[i] = true
			left--
		}
		if len(g.Indexes) == 0 {
			return false
		}
	}
	return left == 0 && len(e.Groups) > 1
}
