package pipeline_test

import (
	"fmt"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/sink/redissink"
)

// The ids of tasks that asynq still has are handed out again: the new events become tasks, too.
func TestReusedIDs_Asynq(t *testing.T) {
	t.Parallel()
	d, url := newDatabase(t), testserver.Redis(t).URL
	s, err := redissink.New(redissink.Config{URL: url, Mode: redissink.Asynq})
	testkit.NoError(t, err)
	closeSink(t, s)
	queue := redisClient(t, url)
	for rounds := range int64(3) {
		relay := start(t, d.buffer(t, fmt.Sprint("relay", rounds)), s, nil)
		ids := d.insert(t, "reused", 10)
		testkit.Equal(t, "the first id", ids[0], 1)
		testserver.Eventually(t, func() error {
			if n := queue.LLen(t.Context(), "asynq:{default}:pending").Val(); n != 10*(rounds+1) {
				return fmt.Errorf("%d tasks are pending; want %d", n, 10*(rounds+1))
			}
			return nil
		})
		d.expectDrained(t)
		relay.stop(t)
		d.exec(t, "TRUNCATE outbox_events RESTART IDENTITY")
	}
}
