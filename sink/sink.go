// Package sink is the contract of a sink: the [Sink] that drivers implement, and the kinds of
// error with which they classify a failure. A sink neither retries nor waits: package delivery
// does, once for all sinks.
package sink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Sink is a destination. Implementations are safe for concurrent use, keep no
// reference to the batch after Send has returned, do not change it, do not
// retry by themselves, and put no secret into an error.
type Sink interface {
	// Send delivers the batch before ctx's deadline. nil: every event is durably
	// accepted. A *BatchError: those it names are not, the others are. An error
	// wrapping ErrUnavailable: nothing can be said about the events, try later
	// (UnavailableError can say when). ErrFenced: this group_id was given up
	// by a later owner; drop the batch.
	// Any other error: the batch as a whole was refused; wrapped by Permanent, for
	// good.
	Send(ctx context.Context, b *buffer.Batch) error

	// Check looks whether the sink can be reached and would take events, without
	// sending any. Its error wraps ErrUnavailable when waiting may help.
	Check(ctx context.Context) error

	// Close gives back connections. No Send runs any more.
	Close() error
}

// Addresser is a Sink whose events may go to different addresses (streams,
// subjects, URLs), each of which may be away while the others work.
type Addresser interface {
	// AddressOf returns the event's address; ok is false when it has none.
	AddressOf(e *outbox.Event) (address string, ok bool)
	// OneAddress tells that all events go to the same address, so that its
	// outage is the sink's.
	OneAddress() bool
}

// Warner is a Sink that can tell of settings which endanger what it promises, one
// sentence each, with what mends it. It is for people: nothing is decided by it.
type Warner interface {
	Warnings(ctx context.Context) []string
}

// Fencer is a Sink that remembers group_ids.
type Fencer interface {
	// Fence gives the batch's group_id up, and those of its origins: whoever still
	// has such a batch in hand adds nothing any more (ErrFenced). delivered tells
	// that all its events have arrived already. The error wraps ErrUnavailable.
	Fence(ctx context.Context, b *buffer.Batch) (delivered bool, err error)
}

var (
	// ErrUnavailable is an outage of the sink, or of an address in it. It is not
	// an attempt; no event dies of it.
	ErrUnavailable = errors.New("sink is unavailable")
	// ErrMaybePoison is found, beside ErrUnavailable, in an outage that may be the
	// batch's own doing: a 5xx, a time-out, a connection that is cut off in
	// mid-answer. One that keeps hitting the same batch, while others are
	// accepted, is taken for a refusal of that batch.
	ErrMaybePoison = errors.New("sink is unavailable, perhaps because of the batch")
	// ErrFenced says that this group_id was given up by a later owner.
	ErrFenced = errors.New("group_id is fenced at the sink")
	// ErrTooLarge is found in the refusal of a batch for its size.
	ErrTooLarge = errors.New("too large")
	// ErrPermanent is a refusal for good; trying again cannot help. See Permanent.
	ErrPermanent = errors.New("refused for good")
)

// Permanent wraps err so that errors.Is finds ErrPermanent: the event, or the
// batch as a whole, is refused and sending the same again cannot succeed.
func Permanent(err error) error { return verdict{err, ErrPermanent} }

// TooLarge wraps err so that errors.Is finds ErrTooLarge.
func TooLarge(err error) error { return verdict{err, ErrTooLarge} }

// Unavailable wraps err so that errors.Is finds ErrUnavailable.
func Unavailable(err error) error { return verdict{err, ErrUnavailable} }

// MaybePoison wraps err so that errors.Is finds ErrUnavailable and ErrMaybePoison.
func MaybePoison(err error) error { return verdict{verdict{err, ErrMaybePoison}, ErrUnavailable} }

// verdict adds a kind to an error without adding to its text.
type verdict struct{ err, kind error }

func (v verdict) Error() string   { return v.err.Error() }
func (v verdict) Unwrap() []error { return []error{v.err, v.kind} }

// UnavailableError is an outage that came with a time. errors.Is finds
// ErrUnavailable in it.
type UnavailableError struct {
	Err error
	// RetryAfter is how long the sink asked to be left alone.
	RetryAfter time.Duration
}

func (e *UnavailableError) Error() string   { return e.Err.Error() }
func (e *UnavailableError) Unwrap() []error { return []error{e.Err, ErrUnavailable} }

// EventError is why one event of a batch was not accepted.
type EventError struct {
	// Index of the event in Batch.Events.
	Index int
	// Err wraps ErrUnavailable (its address is away: not an attempt),
	// ErrPermanent (bury it at once), or neither (a refusal that may be tried
	// again).
	Err error
}

// BatchError names the events of a batch that were not accepted; the others
// were. Each index stands in it once at the most.
type BatchError struct{ Events []EventError }

func (e *BatchError) Error() string {
	if len(e.Events) == 0 {
		return "no event was refused"
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

// Valid reports whether the error names only events of a batch of n, and says of
// each why.
func (e *BatchError) Valid(n int) bool {
	for _, event := range e.Events {
		if event.Index < 0 || event.Index >= n || event.Err == nil {
			return false
		}
	}
	return true
}
