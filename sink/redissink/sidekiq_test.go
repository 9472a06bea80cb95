package redissink_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
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
	for _, command := range testserver.SidekiqReleases() {
		t.Run(command, func(t *testing.T) { runsEveryEventOnce(t, command) })
	}
}

func runsEveryEventOnce(t *testing.T, command string) {
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
			want = append(want, jidOf("test:"+e.Identity(), e.CreatedAt)+" "+what)
		}
		mustSend(t, s, b)
	}
	if got := c.SMembers(t.Context(), "queues").Val(); len(got) != 2 || !slices.Contains(got, "default") {
		t.Errorf("queues are %v", got)
	}
	testserver.Sidekiq(t, command, server, workers, queues...)
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
	jid := jidOf("test:"+b.Events[0].Identity(), b.Events[0].CreatedAt)
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

// An event has the same jid whenever it is sent. A new event with an id that was used before has
// another one. A projection may return another created_at each time, so it does not count.
func TestSidekiq_ReusedID(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{Mode: redissink.Sidekiq})
	jids := func(b *buffer.Batch) (all []string) {
		t.Helper()
		mustSend(t, s, b)
		for _, job := range c.LRange(t.Context(), "queue:default", 0, -1).Val() {
			var of struct{ JID string }
			testkit.NoError(t, json.Unmarshal([]byte(job), &of))
			all = append(all, of.JID)
		}
		testkit.NoError(t, c.Del(t.Context(), "queue:default").Err())
		return all
	}
	b := newBatch("a", "a")
	first := jids(b)
	testkit.Equal(t, "the jids of a resent batch", jids(b), first)
	testkit.Equal(t, "the jid of a part", jids(part(b, 0))[0], first[1]) // a queue is a list from the left
	later := batchOf(slices.Clone(b.Events), nil)
	for i := range later.Events {
		later.Events[i].CreatedAt = later.Events[i].CreatedAt.Add(time.Microsecond)
	}
	for i, jid := range jids(later) {
		if jid == first[i] {
			t.Errorf("another event has the jid of the %d. one", i)
		}
	}
	testkit.Equal(t, "the jids of a projected batch", jids(projected(later)), jids(projected(b)))
}

// classes are workers whose jobs always fail, with retries of their own, and one that says what Sidekiq's API makes of a job.
const classes = `
class Never
  include Sidekiq::Worker
  sidekiq_options retry: false
  def perform(payload) = raise("never")
end

class Few
  include Sidekiq::Worker
  sidekiq_options retry: 3
  def perform(payload) = raise("few")
end

class Reader
  include Sidekiq::Worker
  def perform(payload)
    job = Sidekiq::Queue.new("waiting").first
    Sidekiq.redis { |r| r.rpush("read", [job.created_at.to_f, job.enqueued_at.to_f, job.latency, Sidekiq::Queue.new("waiting").latency].join(" ")) }
  end
end
`

// With retry: class, Sidekiq asks the class of a job that failed. Otherwise the job says it, whatever its class does.
func TestSidekiq_Retry(t *testing.T) {
	t.Parallel()
	for _, command := range testserver.SidekiqReleases() {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			server, _, c := start(t, redissink.Config{Mode: redissink.Sidekiq})
			for retry, want := range map[string]string{"class": "Few:3", "5": "Few:5 Never:5", "false": "", "": "Few:true Never:true"} {
				s, err := redissink.New(redissink.Config{URL: server.URL, Mode: redissink.Sidekiq, Queue: "q" + retry, Class: "{topic}", Retry: retry})
				testkit.NoError(t, err)
				t.Cleanup(func() { testkit.NoError(t, s.Close()) })
				b := newBatch("Never", "Few")
				mustSend(t, s, b)
				sidekiq := testserver.Sidekiq(t, command, server, classes, "q"+retry)
				testkit.Eventually(t, func() error {
					if n := c.Get(t.Context(), "stat:failed").Val(); n != "2" {
						return fmt.Errorf("%s of 2 jobs have failed", n)
					}
					return nil
				})
				testkit.NoError(t, sidekiq.Stop())
				var got []string
				for _, text := range c.ZRange(t.Context(), "retry", 0, -1).Val() {
					var job struct {
						Class string
						Retry any
					}
					testkit.NoError(t, json.Unmarshal([]byte(text), &job))
					got = append(got, fmt.Sprintf("%s:%v", job.Class, job.Retry))
				}
				slices.Sort(got)
				testkit.Equal(t, "retries with retry: "+retry, strings.Join(got, " "), want)
				testkit.NoError(t, c.FlushDB(t.Context()).Err())
			}
		})
	}
}

// Every release reads the times of a job as they are, in seconds.
func TestSidekiq_Times(t *testing.T) {
	t.Parallel()
	for _, command := range testserver.SidekiqReleases() {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			server, s, c := start(t, redissink.Config{Mode: redissink.Sidekiq, Queue: "{key}", Class: "{topic}"})
			waiting, reading := "waiting", "reading"
			b := newBatch("Reader", "Reader")
			created := time.Now().Add(-time.Hour).UTC()
			for i, queue := range []*string{&waiting, &reading} {
				b.Events[i].Key, b.Events[i].CreatedAt = queue, created
			}
			mustSend(t, s, b)
			sent := time.Now()
			testserver.Sidekiq(t, command, server, `require "sidekiq/api"`+classes, reading)
			var read []string
			testkit.Eventually(t, func() error {
				if read = c.LRange(t.Context(), "read", 0, -1).Val(); len(read) == 0 {
					return fmt.Errorf("nothing was read")
				}
				return nil
			})
			var createdAt, enqueuedAt, ofJob, ofQueue float64
			if _, err := fmt.Sscan(read[0], &createdAt, &enqueuedAt, &ofJob, &ofQueue); err != nil {
				t.Fatalf("%q: %v", read, err)
			}
			near := func(what string, got, want, within float64) {
				if got < want-within || got > want+within {
					t.Errorf("%s is %f, want about %f", what, got, want)
				}
			}
			since := time.Since(sent).Seconds()
			near("created_at", createdAt, float64(created.UnixMicro())/1e6, 0.001)
			near("enqueued_at", enqueuedAt, float64(sent.UnixMicro())/1e6, 5)
			near("the job's latency", ofJob, since, since+5)
			near("the queue's latency", ofQueue, since, since+5)
		})
	}
}
