package buffer_test

import (
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// A delay is not taken for a mark, whose name is often that of the same verb, nor for the time of the insert.
func TestSuggests(t *testing.T) {
	t.Parallel()
	for want, columns := range map[buffer.Suggestion][]string{
		buffer.SuggestsDelay: {
			"run_at", "scheduledFor", "not_before", "next_attempt_at", "send_after", "sendAfter", "deliver_after", "process_after", "execute_at",
			"next_run", "next_run_at", "embargo_until", "EmbargoUntilUtc",
		},
		buffer.SuggestsMark:    {"sent_at", "processed_at", "last_sent_at"},
		buffer.SuggestsOutcome: {"published_at", "executed_at", "delivered_at"},
		buffer.SuggestsEnd:     {"failed_at"},
		buffer.SuggestsState:   {"status"},
		buffer.SuggestsHeld:    {"draft", "on_hold", "isTest", "paused", "failed_permanently", "needs_review"},
		buffer.SuggestsReady:   {"approved", "is_enabled", "ready", "should_send"},
		buffer.SuggestsVerdict: {"review", "outcome", "review_status"},
		buffer.SuggestsNothing: {"is_gift", "approved_by", "approved_at", "test_id", "reviewer", "valid_from", "created_at", "inserted_at", "occurred_at", "started_at", "last_run_at", "reminded", "due", "due_at", "publish_at", "start_at", "until", "time", "after"},
	} {
		for _, column := range columns {
			if got := buffer.Suggests(column); got != want {
				t.Errorf("%s suggests %d, want %d", column, got, want)
			}
		}
	}
}
