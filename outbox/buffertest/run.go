package buffertest

import (
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Run holds a buffer to what [Buffer] says. Each case opens a place of its own
// and runs in parallel with the others.
func Run(t *testing.T, h Harness) {
	open := h.Open
	h.Open = func(t testing.TB, opt Options) *Fixture {
		if !opt.Ordered {
			opt.Claim = h.Claim
		}
		return open(t, opt)
	}
	groups := [][]testCase{
		claimCases, rangeCases, leaseCases, settleCases, deliveredCases, backlogCases, deferredCases, deadCases, replayCases, discardCases,
		archiveCases, queueCases, queueSharingCases, rateCases, auditCases, cancelCases, modelCases, peekCases,
	}
	if h.Custom {
		groups = append(groups, customCases, customErrorCases, customDeadCases)
	} else {
		groups = append(groups, orderCases)
	}
	for _, group := range groups {
		for _, c := range group {
			ranged := h.Claim == buffer.ClaimRange
			if c.rowLocks && !h.RowLocks || c.stamped && ranged || c.ranged && !ranged ||
				c.relayTableOnly && h.Custom {
				continue // there is no such situation
			}
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.run(t, h)
			})
		}
	}
}

// testCase is one sentence of the contract between buffer and relay.
type testCase struct {
	name           string
	rowLocks       bool // needs two writers at once
	stamped        bool // needs events that carry their group_id
	ranged         bool // needs a ledger that says which ids a batch holds
	relayTableOnly bool // needs a table of the relay's own
	run            func(t *testing.T, h Harness)
}
