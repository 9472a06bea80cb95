package redissink_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

func TestSidekiqQueue(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{
		Open:       opener(redissink.Config{Mode: redissink.Sidekiq, Queue: "q:{topic}"}, "queue:", "q:", sidekiqArrivals),
		OpenBroken: openBroken,
		Keeps:      sinktest.Keeps{Topic: true, CreatedAt: true, AnyText: true, LineBreaks: true},
	})
}

func TestAsynqQueue(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{
		Open:       opener(redissink.Config{Mode: redissink.Asynq, Queue: "q:{topic}"}, "asynq:{", "q:", asynqArrivals),
		OpenBroken: openBroken,
		Keeps:      sinktest.Keeps{Topic: true, Headers: true, AnyText: true, Bytes: true, LineBreaks: true},
		OnceOnly:   true,
	})
}

// jidOf is what Sidekiq calls the event that is so named.
func jidOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])[:24]
}

const mostIDs = 200_000 // that the suite uses

// idsByJID are the suite's events by what Sidekiq calls them.
var idsByJID = sync.OnceValue(func() map[string]string {
	all := make(map[string]string, mostIDs)
	for id := range mostIDs {
		all[jidOf(fmt.Sprintf("%s:%d", sinktest.Pipeline, id))] = fmt.Sprint(id)
	}
	return all
})

// sidekiqArrivals are read in the order in which Sidekiq takes them.
func sidekiqArrivals(t testing.TB, c *redis.Client) []sinktest.Arrival {
	t.Helper()
	var arrivals []sinktest.Arrival
	for _, queue := range c.SMembers(t.Context(), "queues").Val() {
		if kind := c.Type(t.Context(), "queue:"+queue).Val(); kind != "list" {
			continue // broken on purpose, or nothing there
		}
		texts, err := c.LRange(t.Context(), "queue:"+queue, 0, -1).Result()
		must(t, err)
		for at := len(texts) - 1; at >= 0; at-- {
			arrivals = append(arrivals, sidekiqArrival(t, queue, texts[at]))
		}
	}
	return arrivals
}

func sidekiqArrival(t testing.TB, queue, text string) sinktest.Arrival {
	t.Helper()
	var job struct {
		Class      string            `json:"class"`
		Args       []json.RawMessage `json:"args"`
		Queue      string            `json:"queue"`
		JID        string            `json:"jid"`
		Retry      bool              `json:"retry"`
		CreatedAt  float64           `json:"created_at"`
		EnqueuedAt float64           `json:"enqueued_at"`
		Dead       json.RawMessage   `json:"dead_letter"`
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	must(t, dec.Decode(&job))
	if since := time.Now().UnixMicro() - int64(job.EnqueuedAt*1e6); !job.Retry || len(job.Args) != 1 || job.Queue != queue || since < 0 || since > 1e9 {
		t.Errorf("in queue %s is %s", queue, text)
	}
	id := idsByJID()[job.JID]
	if job.Dead != nil {
		var why struct {
			GroupID string `json:"group_id"`
		}
		must(t, json.Unmarshal(job.Dead, &why))
		for of := 0; id == "" && of < mostIDs; of++ {
			if jidOf(fmt.Sprintf("%s:%d:dead:%s", sinktest.Pipeline, of, why.GroupID)) == job.JID {
				id = fmt.Sprint(of)
			}
		}
	}
	return sinktest.Arrival{
		ID: id, Topic: job.Class, Payload: job.Args[0], Address: queue, DeadLetter: string(job.Dead),
		CreatedAt: time.UnixMicro(int64(job.CreatedAt*1e6 + 0.5)).UTC(),
	}
}

// asynqArrivals are read with asynq's own inspector, in the order in which it takes them.
func asynqArrivals(t testing.TB, c *redis.Client) []sinktest.Arrival {
	t.Helper()
	inspector := asynq.NewInspectorFromRedisClient(c)
	queues, err := inspector.Queues()
	must(t, err)
	var arrivals []sinktest.Arrival
	for _, queue := range queues {
		if kind := c.Type(t.Context(), "asynq:{"+queue+"}:pending").Val(); kind != "list" {
			continue // broken on purpose, or nothing there
		}
		tasks, err := inspector.ListPendingTasks(queue, asynq.PageSize(100_000))
		must(t, err)
		for _, task := range tasks {
			arrivals = append(arrivals, asynqArrival(t, task))
		}
	}
	return arrivals
}

func asynqArrival(t testing.TB, task *asynq.TaskInfo) sinktest.Arrival {
	t.Helper()
	id, _ := strings.CutPrefix(task.ID, sinktest.Pipeline+":")
	id, _, _ = strings.Cut(id, ":dead:")
	if task.MaxRetry != 25 || task.Timeout != 30*time.Minute || !task.Deadline.IsZero() || task.Retention != 0 {
		t.Errorf("task %+v", task)
	}
	a := sinktest.Arrival{ID: id, Topic: task.Type, Payload: task.Payload, Address: task.Queue, DeadLetter: task.Headers["Relay-Dead-Letter"]}
	if task.Payload == nil {
		a.Payload = []byte{}
	}
	delete(task.Headers, "Relay-Dead-Letter")
	if len(task.Headers) > 0 {
		a.Headers = outbox.NewHeaders(task.Headers)
	}
	return a
}

// What a queue cannot take is refused alone.
func TestEventsThatNoQueueTakes(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{Mode: redissink.Sidekiq, Class: "{key}"})
	b := newBatch(times(5, "orders")...)
	b.PayloadIsJSON = false
	for i := range 4 {
		b.Events[i].Key = text("Worker")
	}
	b.Events[1].Payload = []byte("\xff")
	b.Events[2].Key = text("")
	if why := expectParts(t, send(t, s, b), sink.ErrPermanent, 1, 2, 4); !strings.Contains(why, "not JSON") {
		t.Errorf("the first says %s", why)
	}
	if n := c.LLen(t.Context(), "queue:default").Val(); n != 2 {
		t.Errorf("%d were pushed, want 2", n)
	}
	expectParts(t, send(t, s, part(b, 2, 4)), sink.ErrPermanent, 0, 1)

	asynqs := opened(t, redissink.Config{URL: "redis://" + c.Options().Addr, Mode: redissink.Asynq, Queue: "{topic}", Class: "{key}"})
	b = newBatch("a", "a", " ", "}a", "a", "\xff", "a", "b")
	for i := range 7 {
		b.Events[i].Key = text("kind")
	}
	b.Events[1].Key = text(" ")
	b.Events[4].Key = text("\xff")
	b.Events[6].Headers = outbox.Headers(`[]`)
	var divide *sink.SplitError
	if err := send(t, asynqs, b); !errors.As(err, &divide) || len(divide.Groups) != 8 || !slices.Equal(divide.Groups[0].Indexes, []int{0}) {
		t.Errorf("got %v, want what can be sent parted from what cannot", err)
	}
	expectParts(t, send(t, asynqs, part(b, 1, 2, 3, 4, 5, 6, 7)), sink.ErrPermanent, 0, 1, 2, 3, 4, 5, 6)
	if got := asynqArrivals(t, c); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

// Nothing is pushed into a queue whose name could not be made known: it would be pushed
// again.
func TestQueueThatIsNotAnnouncedGetsNothing(t *testing.T) {
	t.Parallel()
	for mode, set := range map[redissink.Mode]string{redissink.Sidekiq: "queues", redissink.Asynq: "asynq:queues"} {
		_, s, c := start(t, redissink.Config{Mode: mode})
		must(t, c.Set(t.Context(), set, "no set", 0).Err())
		b := newBatch("a", "b")
		expectOutage(t, send(t, s, b), set)
		if n := len(keys(t, c, "list")); n != 0 {
			t.Errorf("%s: %d queues were pushed to", mode, n)
		}
		must(t, c.Del(t.Context(), set).Err())
		mustSend(t, s, b)
		if n := c.SMembers(t.Context(), set).Val(); len(n) != 1 || n[0] != "default" {
			t.Errorf("%s: the queues are %v", mode, n)
		}
	}
}

// A script that fails half-way takes back what it did, and adds all of it later.
func TestTasksAddedBeforeAnErrorAreTakenBack(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{Mode: redissink.Asynq})
	before := newBatch("a")
	mustSend(t, s, before)
	b := newBatch(times(2500, "a")...)
	for _, command := range []string{"lpush", "set"} { // after the tasks were written, and last of all
		must(t, c.Do(t.Context(), "ACL", "SETUSER", "default", "-"+command).Err())
		expectOutage(t, send(t, s, b), "of 2500")
		must(t, c.Do(t.Context(), "ACL", "SETUSER", "default", "+"+command).Err())
		if n := len(keys(t, c, "hash")); n != 1 {
			t.Errorf("without %s: %d tasks, want 1", command, n)
		}
		if got := asynqArrivals(t, c); len(got) != 1 || got[0].ID != "test:"+before.Events[0].Identity() {
			t.Errorf("without %s: %d are pending, the first %v", command, len(got), got[0])
		}
	}
	mustSend(t, s, b, b)
	if got := asynqArrivals(t, c); len(got) != 2501 || got[2500].ID != "test:"+b.Events[2499].Identity() {
		t.Errorf("%d are pending", len(got))
	}
}

func TestAsynqFence(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{Mode: redissink.Asynq, Queue: "{topic}"})
	b := newBatch("a", "b")
	if delivered, err := s.Fence(t.Context(), b); delivered || err != nil {
		t.Fatalf("Fence of what was not sent: %v, %v", delivered, err)
	}
	if err := send(t, s, b); !errors.Is(err, sink.ErrFenced) {
		t.Errorf("got %v, want sink.ErrFenced", err)
	}
	again := part(b, 0, 1)
	mustSend(t, s, again)
	if delivered, err := s.Fence(t.Context(), again); !delivered || err != nil {
		t.Errorf("Fence of what was sent: %v, %v", delivered, err)
	}
	if got := asynqArrivals(t, c); len(got) != 2 {
		t.Errorf("got %v", got)
	}
	expectMarkers(t, c, "asynq:{a}:relay:", window, map[uuid.UUID]string{again.GroupID: "sent {topic}", b.GroupID: "void"})

	// An owner that lost its lease adds nothing, although asynq has done and forgotten all.
	whole := newBatch("a", "b")
	mustSend(t, s, part(whole, 0), part(whole, 1))
	must(t, c.Del(t.Context(), append(keys(t, c, "hash"), "asynq:{a}:pending", "asynq:{b}:pending")...).Err())
	if err := send(t, s, whole); !errors.Is(err, sink.ErrFenced) {
		t.Errorf("got %v, want sink.ErrFenced", err)
	}
}

// The rights that the package's comment names are enough.
func TestLeastPrivilegesForQueues(t *testing.T) {
	t.Parallel()
	for mode, rights := range map[redissink.Mode][]any{
		redissink.Sidekiq: {"~queues", "~queue:*", "+ping", "+sadd", "+lpush"},
		redissink.Asynq: {
			"~asynq:*", "+ping", "+evalsha", "+eval", "+mget", "+set", "+exists", "+hset", "+del", "+lpush", "+lpop", "+sadd",
		},
	} {
		server, _, c := start(t, redissink.Config{})
		must(t, c.Do(t.Context(), append([]any{"ACL", "SETUSER", "relay", "on", ">pw"}, rights...)...).Err())
		s := opened(t, redissink.Config{URL: strings.Replace(server.URL, "redis://", "redis://relay:pw@", 1), Mode: mode})
		mustSend(t, s, newBatch("a", "b"), newBatch("a"))
		must(t, s.Check(t.Context()))
		must(t, c.Do(t.Context(), "ACL", "SETUSER", "relay", "-lpush").Err())
		expectOutage(t, send(t, s, newBatch("a", "b")), "default")
		if n := len(keys(t, c, "hash")); mode == redissink.Asynq && n != 3 {
			t.Errorf("%d tasks, want 3", n)
		}
	}
}
