package outbox

import "errors"

// ErrInvalidEvent: an event that Insert refuses; nothing was inserted.
var ErrInvalidEvent = errors.New("invalid event")
