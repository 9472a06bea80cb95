package delivery_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// A batch that was not read is not sent: it is divided by ids, or waits as for an outage.
func TestDivide(t *testing.T) {
	t.Parallel()
	slow, broken := fmt.Errorf("%w: 3 of them in 15s", buffer.ErrSlowRead), errors.New("connection reset")
	unreadable := fmt.Errorf("%w: no equivalent", buffer.ErrUnreadable)
	for _, c := range []struct {
		name                          string
		n, read                       int
		why                           error
		unfinished, attempts, outages int
		reads                         int    // that fail
		want                          string // verdict, ids, attempts, outages and unfinished leases of each outcome
	}{
		{"too large", 5, 2, buffer.ErrTooLarge, 1, 0, 0, 1, "retry [101 102]0/0/0, retry [103 104]0/0/0, retry [105]0/0/0"},
		{"too large at the last event", 3, 2, buffer.ErrTooLarge, 1, 0, 0, 1, "retry [101 102]0/0/0, retry [103]0/0/0"},
		{"sent before", 2, 1, buffer.ErrTooLarge, 1, 2, 0, 1, "retry [101]2/1/0, retry [102]2/1/0"},
		{"left unfinished before", 2, 1, buffer.ErrTooLarge, 4, 0, 3, 1, "retry [101]0/3/2, retry [102]0/3/2"},
		{"slow", 4, 3, slow, 1, 0, 0, 1, "retry [101 102]0/0/0, retry [103 104]0/0/0"},
		{"slow at the first event", 2, 0, slow, 1, 0, 0, 1, "retry [101]0/0/0, retry [102]0/0/0"},
		{"slow alone", 1, 0, slow, 3, 2, 4, 1, "retry []2/5/2"},
		{"unreadable", 2, 0, unreadable, 1, 0, 0, 1, "retry [101]0/0/0, retry [102]0/0/0"},
		{"unreadable alone", 1, 0, unreadable, 1, 0, 0, 1, "retry []0/1/0"},
		{"neither read nor listed", 0, 0, broken, 4, 2, 1, 1, "retry []2/2/3"},
		{"a broken connection", 4, 2, broken, 1, 0, 0, 1, "retry []0/1/0"},
		{"a broken connection, twice", 4, 2, broken, 1, 0, 1, 2, "retry []0/2/0"},
		{"a broken connection, three times", 4, 2, broken, 1, 0, 2, 3, "retry [101 102]0/2/0, retry [103 104]0/2/0"},
		{"a broken connection, after a settle that was lost", 4, 2, broken, 1, 0, 2, 4, "retry []0/3/0"},
		{"a broken connection, after outages of the sink", 4, 2, broken, 1, 0, 7, 1, "retry []0/8/0"},
		{"slow, but sent before", 4, 3, slow, 1, 0, 1, 2, "retry []0/2/0"},
		{"slow, but left unfinished before", 4, 3, slow, 2, 0, 0, 2, "retry []0/1/1"},
		{"slow three times, and sent before", 4, 3, slow, 1, 0, 1, 3, "retry [101 102]0/1/0, retry [103 104]0/1/0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newHarness(nil)
			batch := batchOf(c.n)
			batch.UnfinishedLeases, batch.Attempts, batch.Outages = c.unfinished, c.attempts, c.outages
			batch.FailRead(c.why, c.read)
			for range c.reads {
				b.settled = nil
				if _, _, err := b.work(t, batch); err != nil {
					t.Fatal(err)
				}
			}
			got := make([]string, len(b.settled))
			for i, o := range b.settled {
				got[i] = fmt.Sprintf("%v %v%d/%d/%d", o.Verdict, o.IDs, o.Attempts, o.Outages, o.UnfinishedLeases)
				if o.Address != nil {
					t.Errorf("the recovery of address %q makes it due; want none to", *o.Address)
				}
			}
			expect(t, "outcomes", strings.Join(got, ", "), c.want)
			expect(t, "sends", b.sends, 0)
		})
	}
}

// A read that succeeds ends the row of those that failed.
func TestDivide_ReadInBetween(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	broken := batchOf(4)
	read := *broken
	broken.FailRead(errors.New("connection reset"), 2)
	for _, l := range []*buffer.Lease{broken, broken, &read, broken} {
		b.settled = nil
		l.Events = batchOf(4).Events
		if _, _, err := b.work(t, l); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, "outcomes", len(b.settled), 1)
	expect(t, "sends", b.sends, 1)
}

// What becomes of a batch that kills its readers is decided by its ids.
func TestKillsReader(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		n, unfinished int
		keep          bool
		want          string
	}{
		{"several", 3, 5, false, "retry [101 102]2, retry [103]2"},
		{"one", 1, 9, false, "dead []0"},
		{"one that is never buried", 1, 9, true, "retry []8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newHarness(func(config *delivery.Config) { config.NeverBury = c.keep })
			batch := batchOf(c.n)
			batch.UnfinishedLeases = c.unfinished
			batch.FailRead(buffer.ErrKillsReader, 0)
			if _, _, err := b.work(t, batch); err != nil {
				t.Fatal(err)
			}
			got := make([]string, len(b.settled))
			for i, o := range b.settled {
				got[i] = fmt.Sprintf("%v %v%d", o.Verdict, o.IDs, o.UnfinishedLeases)
			}
			expect(t, "outcomes", strings.Join(got, ", "), c.want)
			expect(t, "sends", b.sends, 0)
		})
	}
}

// The parts of a batch are bounded in number, so that the settle is; the last one is divided again.
func TestDivide_AtMost64Parts(t *testing.T) {
	t.Parallel()
	b := newHarness(func(c *delivery.Config) { c.Ordered = true })
	batch := batchOf(1000)
	batch.FailRead(buffer.ErrTooLarge, 1)
	if _, _, err := b.work(t, batch); err != nil {
		t.Fatal(err)
	}
	var ids []int64
	for _, o := range b.settled {
		ids = append(ids, o.IDs...)
	}
	expect(t, "parts", len(b.settled), 64)
	if !slices.Equal(ids, batch.IDs()) {
		t.Errorf("the parts have ids %v", ids)
	}
}
