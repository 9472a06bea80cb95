package sink

import "fmt"

// BehindError is why a sink that keeps order did not send an event: an earlier one of
// its key was not accepted. errors.Is finds ErrUnavailable in it; it says nothing of
// the event's address.
type BehindError struct {
	// ID of the event before, and why that was not accepted.
	ID  int64
	Err error
}

func (e *BehindError) Error() string {
	return fmt.Sprintf("not sent: it waits behind event %d of its key, which was not accepted: %v", e.ID, e.Err)
}

func (e *BehindError) Unwrap() []error { return []error{e.Err, ErrUnavailable} }
