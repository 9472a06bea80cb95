// Package claimmode negotiates between the claim mode that is stored with a buffer and the one
// that a relay would use. All relays on a buffer claim in the stored mode, because two modes
// on one table lose track of each other; it changes only while the buffer's ledger is empty.
package claimmode

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// The modes as outbox_buffers stores them.
const (
	Stamp = string(buffer.ClaimStamp)
	// StampKey is stamp with `order: key`: each ledger row holds the lanes of its keys.
	StampKey = "stamp key"
	Range    = string(buffer.ClaimRange)
)

// Known reports whether this relay can change from the stored mode. Any other mode is that of
// another version of the relay.
func Known(stored string) bool { return slices.Contains([]string{Stamp, StampKey, Range}, stored) }

// Public returns the mode as the configuration names it; "" for "".
func Public(mode string) buffer.ClaimMode {
	if mode == StampKey {
		return buffer.ClaimStamp
	}
	return buffer.ClaimMode(mode)
}

// Request is what a configuration asks for.
type Request struct {
	// Claim is the configured mode.
	Claim buffer.ClaimMode
	// Ordered is set for `order: key`, Custom for a custom table. Both are claimed by stamp.
	Ordered, Custom bool
}

// Validate reports a request that cannot be met.
func (r Request) Validate() error {
	switch r.Claim {
	case buffer.ClaimAuto, buffer.ClaimStamp:
		return nil
	case buffer.ClaimRange:
		if r.Ordered {
			return errors.New(`claim is "range"; expected "auto" or "stamp" with order: key`)
		}
		if r.Custom {
			return errors.New(`claim is "range"; expected "auto" or "stamp" for a custom table`)
		}
		return nil
	case "optimistic":
		return errors.New(`claim is "optimistic", which was removed; expected "auto", "stamp" or "range" (use "auto")`)
	}
	return fmt.Errorf(`claim is %q; expected "auto", "stamp" or "range"`, r.Claim)
}

// Preferred returns the mode that the relay would store. eligible reports whether the table
// allows range claims.
func (r Request) Preferred(eligible bool) string {
	switch {
	case r.Ordered:
		return StampKey
	case r.Custom, r.Claim == buffer.ClaimStamp, !eligible:
		return Stamp
	}
	return Range
}

// CanFollow reports whether the relay may claim in the stored mode although it prefers another.
func (r Request) CanFollow(stored string) bool {
	switch {
	case r.Ordered, r.Custom, !Known(stored), stored == StampKey:
		return false
	case r.Claim == buffer.ClaimRange: // and it prefers stamp, because the table is not eligible
		return stored == Range
	}
	return r.Claim == buffer.ClaimAuto
}

// ConflictError is a stored mode that this relay can neither change nor follow. errors.Is finds
// buffer.ErrNotReady.
type ConflictError struct{ Buffer, Stored, Preferred string }

func (e *ConflictError) Error() string {
	text := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	return fmt.Sprintf("%v: buffer %s is claimed by %q; this relay would claim by %q. Claim modes must not be mixed on one table. "+
		"Stop all relays that use it, wait until outbox_batches is empty, then run: UPDATE outbox_buffers SET claim = %s WHERE buffer = %s",
		buffer.ErrNotReady, e.Buffer, e.Stored, e.Preferred, text(e.Preferred), text(e.Buffer))
}

func (e *ConflictError) Unwrap() error { return buffer.ErrNotReady }

// InUse reports whether err is a conflict that ends by itself once the ledger is empty.
func InUse(err error) bool {
	conflict, ok := errors.AsType[*ConflictError](err)
	return ok && Known(conflict.Stored)
}
