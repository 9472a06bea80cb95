// Package buffertest is the conformance suite that every [buffer.Buffer] passes, with its
// benchmarks.
package buffertest

import (
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Run checks that a buffer keeps the contract of [buffer.Buffer]. Each case opens a database of
// its own and runs in parallel with the others.
//
// The relay supports `order: key` only on its own tables, so the cases of order are not run for
// custom tables.
func Run(t *testing.T, h Harness) {
	open := h.Open
	h.Open = func(t testing.TB, opt Options) *Fixture {
		if !opt.Ordered {
			opt.Claim = h.Claim
		}
		return open(t, opt)
	}
	groups := [][]testCase{
		claimCases, rangeCases, leaseCases, settleCases, historyCases, deliveredCases, backlogCases, deferredCases, deadCases, replayCases, editCases, discardCases,
		archiveCases, archiveReplayCases, retentionCases, queueCases, queueSharingCases, rateCases, relayCases, pauseCases, auditCases, cancelCases, modelCases, peekCases, bytesCases, liveCases, delayedCases,
	}
	if h.Custom {
		groups = append(groups, customCases, customErrorCases, customDeadCases, customWhereCases)
	} else {
		groups = append(groups, orderCases)
	}
	if h.Marked {
		groups = append(groups, markCases)
	}
	for _, group := range groups {
		for _, c := range group {
			if !c.appliesTo(h) {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.run(t, h)
			})
		}
	}
}

// testCase is one rule of the contract.
type testCase struct {
	name            string
	rowLocksOnly    bool // needs two transactions that write at once
	stampOnly       bool // needs events that carry their group_id
	rangeOnly       bool // needs a ledger that says which ids a batch holds
	relayTableOnly  bool // needs a table of the relay's own
	deletesOnly     bool // needs rows that are deleted when they are done
	integerKeysOnly bool // needs an archive, or dead letters that the case writes by hand
	delays          bool // needs delayed events
	run             func(t *testing.T, h Harness)
}

func (c *testCase) appliesTo(h Harness) bool {
	ranged := h.Claim == buffer.ClaimRange
	return (h.RowLocks || !c.rowLocksOnly) && (ranged || !c.rangeOnly) && (!ranged || !c.stampOnly) &&
		(h.Delays || !c.delays) && (!h.Custom || !c.relayTableOnly) && (!h.UUIDKeys || !c.integerKeysOnly) && (!h.Marked || !c.deletesOnly)
}
