package outbox

import "errors"

// ErrInvalidEvent is the error of an event that Insert refuses; nothing was inserted.
var ErrInvalidEvent = errors.New("invalid event")
