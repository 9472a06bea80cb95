package claimmode_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
)

const (
	stamp, stampKey, ranged = claimmode.Stamp, claimmode.StampKey, claimmode.Range
)

func TestRequest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		request          claimmode.Request
		best, ineligible string   // preferred modes
		follows          []string // stored modes
	}{
		"auto":           {claimmode.Request{Claim: buffer.ClaimAuto}, ranged, stamp, []string{stamp, ranged}},
		"stamp":          {claimmode.Request{Claim: buffer.ClaimStamp}, stamp, stamp, nil},
		"range":          {claimmode.Request{Claim: buffer.ClaimRange}, ranged, stamp, []string{ranged}},
		"order: key":     {claimmode.Request{Claim: buffer.ClaimAuto, Ordered: true}, stampKey, stampKey, nil},
		"a custom table": {claimmode.Request{Claim: buffer.ClaimAuto, Custom: true}, stamp, stamp, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := c.request.Validate(); err != nil {
				t.Errorf("Validate: %v", err)
			}
			if got := c.request.Preferred(true); got != c.best {
				t.Errorf("prefers %q; expected %q", got, c.best)
			}
			if got := c.request.Preferred(false); got != c.ineligible {
				t.Errorf("prefers %q on a table that is not eligible; expected %q", got, c.ineligible)
			}
			for _, stored := range []string{stamp, stampKey, ranged, "optimistic", ""} {
				want := false
				for _, one := range c.follows {
					want = want || one == stored
				}
				if got := c.request.CanFollow(stored); got != want {
					t.Errorf("follows %q: %t; expected %t", stored, got, want)
				}
			}
		})
	}
}

func TestRequest_Validate_Rejects(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]claimmode.Request{
		`"range"; expected "auto" or "stamp" with order: key`: {Claim: buffer.ClaimRange, Ordered: true},
		"custom table":                    {Claim: buffer.ClaimRange, Custom: true},
		`"optimistic", which was removed`: {Claim: "optimistic"},
		`claim is "fast"`:                 {Claim: "fast"},
	} {
		if err := r.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v; expected %q", r, err, want)
		}
	}
}

func TestConflictError(t *testing.T) {
	t.Parallel()
	err := error(&claimmode.ConflictError{Buffer: "user's events", Stored: stamp, Preferred: ranged})
	if !errors.Is(err, buffer.ErrNotReady) || !claimmode.InUse(err) {
		t.Errorf("%v: expected ErrNotReady, in use", err)
	}
	if want := "UPDATE outbox_buffers SET claim = 'range' WHERE buffer = 'user''s events'"; !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v: expected it to end with %s", err, want)
	}
	if claimmode.InUse(&claimmode.ConflictError{Stored: "newer"}) || claimmode.InUse(buffer.ErrLocked) {
		t.Error("a mode that is not known is never in use")
	}
}

func TestPublic(t *testing.T) {
	t.Parallel()
	for stored, want := range map[string]buffer.ClaimMode{"": "", stamp: buffer.ClaimStamp, stampKey: buffer.ClaimStamp, ranged: buffer.ClaimRange} {
		if got := claimmode.Public(stored); got != want {
			t.Errorf("%q: got %q; expected %q", stored, got, want)
		}
	}
}
