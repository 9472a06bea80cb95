package redissink_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/sink/redissink"
)

// workers record their arguments in the list "done".
const workers = `
class Recorder
  include Sidekiq::Worker
  def perform(payload)
    Sidekiq.redis { |r| r.rpush("done", "#{jid} #{payload.fetch("text")}") }
  end
end

class Flaky
  include Sidekiq::Worker
  def perform(payload)
    raise "not at first" if Sidekiq.redis { |r| r.incr("attempts") } == 1
    Sidekiq.redis { |r| r.rpush("done", "#{jid} #{payload.fetch("text")}") }
  end
end
`

// A real Sidekiq runs every event of every queue once, and retries those that raise.
func TestSidekiq_RunsEveryEventOnce(t *testing.T) {
	t.Parallel()
	server, s, c := start(t, redissink.Config{Mode: redissink.Sidekiq, Queue: "{key}", Class: "{topic}"})
	const events, each = 10_000, 1000
	queues := []string{"mailers", "default"}
	var want []string
	for range events / each {
		b := newBatch(times(each, "Recorder")...)
		for i := range b.Events {
			e := &b.Events[i]
			e.Key = &queues[i%2]
			what := fmt.Sprintf("größe ☃ \"%d\"", e.ID)
			e.Payload = fmt.Appendf(nil, `{"text": %q}`, what)
			want = append(want, jidOf("test:"+e.Identity())+" "+what)
		}
		mustSend(t, s, b)
	}
	if got := c.SMembers(t.Context(), "queues").Val(); len(got) != 2 || !slices.Contains(got, "default") {
		t.Errorf("queues are %v", got)
	}
	testserver.Sidekiq(t, server, workers, queues...)
	testkit.Eventually(t, func() error {
		if n := c.LLen(t.Context(), "done").Val(); n < events {
			return fmt.Errorf("%d of %d events were run", n, events)
		}
		return nil
	})
	got := c.LRange(t.Context(), "done", 0, -1).Val()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("%d events were run, such as %q; want %d such as %q", len(got), got[0], len(want), want[0])
	}

	testkit.NoError(t, c.Del(t.Context(), "done").Err())
	b := newBatch("Flaky")
	b.Events[0].Key, b.Events[0].Payload = &queues[0], []byte(`{"text": "again"}`)
	mustSend(t, s, b)
	var failed []string
	testkit.Eventually(t, func() error {
		if failed = c.ZRange(t.Context(), "retry", 0, -1).Val(); len(failed) == 0 {
			return fmt.Errorf("the job has not failed yet")
		}
		return nil
	})
	jid := jidOf("test:" + b.Events[0].Identity())
	if len(failed) != 1 || !strings.Contains(failed[0], jid) || !strings.Contains(failed[0], "not at first") {
		t.Fatalf("the retry set is %q", failed)
	}
	testkit.NoError(t, c.ZAddXX(t.Context(), "retry", redis.Z{Score: 1, Member: failed[0]}).Err()) // due now
	testkit.Eventually(t, func() error {
		if got := c.LRange(t.Context(), "done", 0, -1).Val(); len(got) != 1 || got[0] != jid+" again" {
			return fmt.Errorf("done is %q", got)
		}
		return nil
	})
}
