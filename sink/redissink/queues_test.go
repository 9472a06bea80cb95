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

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

func TestSidekiq(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{
		Open:       opener(redissink.Config{Mode: redissink.Sidekiq, Queue: "q:{topic}"}, "queue:", "q:", sidekiqArrivals),
		OpenBroken: openBroken,
		Keeps:      sinktest.Keeps{Topic: true, CreatedAt: true, AnyText: true, LineBreaks: true},
	})
}

func TestAsynq(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{
		Open:       opener(redissink.Config{Mode: redissink.Asynq, Queue: "q:{topic}"}, "asynq:{", "q:", asynqArrivals),
		OpenBroken: openBroken,
		Keeps:      sinktest.Keeps{Topic: true, Headers: true, AnyText: true, Bytes: true, LineBreaks: true},
		OnceOnly:   true,
	})
}

// jidOf is the Sidekiq job id of the event with that name.
func jidOf(name string, createdAt time.Time) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s:%d", name, createdAt.UnixMicro()))
	return hex.EncodeToString(sum[:])[:24]
}

const maxID = 200_000 // that the suite uses

// idsByJID are the ids of the suite's events by Sidekiq job id. Nearly all have one created_at.
func idsByJID(createdAt time.Time) map[string]string {
	jids.Lock()
	defer jids.Unlock()
	all, ok := jids.byTime[createdAt]
	if !ok {
		all = make(map[string]string, maxID)
		for id := range maxID {
			all[jidOf(fmt.Sprintf("%s:%d", sinktest.Pipeline, id), createdAt)] = fmt.Sprint(id)
		}
		jids.byTime[createdAt] = all
	}
	return all
}

var jids = struct {
	sync.Mutex
	byTime map[time.Time]map[string]string
}{byTime: map[time.Time]map[string]string{}}

// sidekiqArrivals reads the queues in the order in which Sidekiq does.
func sidekiqArrivals(t testing.TB, c *redis.Client) []sinktest.Arrival {
	t.Helper()
	var arrivals []sinktest.Arrival
	for _, queue := range c.SMembers(t.Context(), "queues").Val() {
		if kind := c.Type(t.Context(), "queue:"+queue).Val(); kind != "list" {
			continue // broken on purpose, or absent
		}
		texts, err := c.LRange(t.Context(), "queue:"+queue, 0, -1).Result()
		testkit.NoError(t, err)
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
	testkit.NoError(t, dec.Decode(&job))
	if since := time.Now().UnixMicro() - int64(job.EnqueuedAt*1e6); !job.Retry || len(job.Args) != 1 || job.Queue != queue || since < 0 || since > 1e9 {
		t.Errorf("queue %s contains %s", queue, text)
	}
	createdAt := time.UnixMicro(int64(job.CreatedAt*1e6 + 0.5)).UTC()
	id := idsByJID(createdAt)[job.JID]
	if job.Dead != nil {
		var why struct {
			GroupID string `json:"group_id"`
		}
		testkit.NoError(t, json.Unmarshal(job.Dead, &why))
		for of := 0; id == "" && of < maxID; of++ {
			if jidOf(fmt.Sprintf("%s:%d:dead:%s", sinktest.Pipeline, of, why.GroupID), createdAt) == job.JID {
				id = fmt.Sprint(of)
			}
		}
	}
	return sinktest.Arrival{
		ID: id, Topic: job.Class, Payload: job.Args[0], Address: queue, DeadLetter: string(job.Dead),
		CreatedAt: createdAt,
	}
}

// asynqArrivals reads the queues with asynq's own inspector, in the order in which asynq does.
func asynqArrivals(t testing.TB, c *redis.Client) []sinktest.Arrival {
	t.Helper()
	inspector := asynq.NewInspectorFromRedisClient(c)
	queues, err := inspector.Queues()
	testkit.NoError(t, err)
	var arrivals []sinktest.Arrival
	for _, queue := range queues {
		if kind := c.Type(t.Context(), "asynq:{"+queue+"}:pending").Val(); kind != "list" {
			continue // broken on purpose, or absent
		}
		tasks, err := inspector.ListPendingTasks(queue, asynq.PageSize(100_000))
		testkit.NoError(t, err)
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

// Events that cannot be jobs are rejected alone.
func TestQueues_InvalidEvents(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{Mode: redissink.Sidekiq, Class: "{key}"})
	b := newBatch(times(5, "orders")...)
	b.PayloadIsJSON = false
	for i := range 4 {
		b.Events[i].Key = new("Worker")
	}
	b.Events[1].Payload = []byte("\xff")
	b.Events[2].Key = new("")
	if why := expectParts(t, send(t, s, b), sink.ErrPermanent, 1, 2, 4); !strings.Contains(why, "not JSON") {
		t.Errorf("the first error is %s", why)
	}
	if n := c.LLen(t.Context(), "queue:default").Val(); n != 2 {
		t.Errorf("%d events were pushed; want 2", n)
	}
	expectParts(t, send(t, s, part(b, 2, 4)), sink.ErrPermanent, 0, 1)

	asynqSink := opened(t, redissink.Config{URL: "redis://" + c.Options().Addr, Mode: redissink.Asynq, Queue: "{topic}", Class: "{key}"})
	b = newBatch("a", "a", " ", "}a", "a", "\xff", "a", "b")
	for i := range 7 {
		b.Events[i].Key = new("kind")
	}
	b.Events[1].Key = new(" ")
	b.Events[4].Key = new("\xff")
	b.Events[6].Headers = outbox.Headers(`[]`)
	var split *sink.SplitError
	if err := send(t, asynqSink, b); !errors.As(err, &split) || len(split.Groups) != 8 || !slices.Equal(split.Groups[0].Indexes, []int{0}) {
		t.Errorf("got %v; want a split of valid and rejected events", err)
	}
	expectParts(t, send(t, asynqSink, part(b, 1, 2, 3, 4, 5, 6, 7)), sink.ErrPermanent, 0, 1, 2, 3, 4, 5, 6)
	if got := asynqArrivals(t, c); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

// TestEnvelopes_InvalidHeaders: an event whose headers would make an envelope invalid is rejected alone.
func TestEnvelopes_InvalidHeaders(t *testing.T) {
	t.Parallel()
	for _, mode := range []redissink.Mode{redissink.List, redissink.Publish} {
		_, s, _ := start(t, redissink.Config{Mode: mode})
		b := newBatch("a", "a", "a")
		b.Events[1].Headers = outbox.Headers("{\"a\":\"\xff\"}") // json_valid of SQLite accepts it
		expectParts(t, send(t, s, b), sink.ErrPermanent, 1)
	}
}

// No event is pushed to a queue whose name could not be registered, because it would be
// pushed again.
func TestQueues_UnregisteredQueueGetsNothing(t *testing.T) {
	t.Parallel()
	for mode, set := range map[redissink.Mode]string{redissink.Sidekiq: "queues", redissink.Asynq: "asynq:queues"} {
		_, s, c := start(t, redissink.Config{Mode: mode})
		testkit.NoError(t, c.Set(t.Context(), set, "not a set", 0).Err())
		b := newBatch("a", "b")
		expectOutage(t, send(t, s, b), set)
		if n := len(keys(t, c, "list")); n != 0 {
			t.Errorf("%s: events were pushed to %d queues", mode, n)
		}
		testkit.NoError(t, c.Del(t.Context(), set).Err())
		mustSend(t, s, b)
		if n := c.SMembers(t.Context(), set).Val(); len(n) != 1 || n[0] != "default" {
			t.Errorf("%s: the queues are %v", mode, n)
		}
	}
}

// A script that fails removes what it added; the next attempt adds all events.
func TestAsynq_UndoOnError(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{Mode: redissink.Asynq})
	before := newBatch("a")
	mustSend(t, s, before)
	b := newBatch(times(2500, "a")...)
	for _, command := range []string{"lpush", "set"} { // after the tasks, and for the marker
		testkit.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "default", "-"+command).Err())
		expectOutage(t, send(t, s, b), "of 2500")
		testkit.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "default", "+"+command).Err())
		if n := len(keys(t, c, "hash")); n != 1 {
			t.Errorf("without %s: %d tasks, want 1", command, n)
		}
		if got := asynqArrivals(t, c); len(got) != 1 || got[0].ID != "test:"+before.Events[0].Identity() {
			t.Errorf("without %s: %d tasks are pending, the first is %v", command, len(got), got[0])
		}
	}
	mustSend(t, s, b, b)
	if got := asynqArrivals(t, c); len(got) != 2501 || got[2500].ID != "test:"+b.Events[2499].Identity() {
		t.Errorf("%d tasks are pending", len(got))
	}
}

func TestFence_Asynq(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{Mode: redissink.Asynq, Queue: "{topic}"})
	b := newBatch("a", "b")
	if delivered, err := s.Fence(t.Context(), b); delivered || err != nil {
		t.Fatalf("Fence of an unsent batch: %v, %v", delivered, err)
	}
	if err := send(t, s, b); !errors.Is(err, sink.ErrFenced) {
		t.Errorf("got %v, want sink.ErrFenced", err)
	}
	again := part(b, 0, 1)
	mustSend(t, s, again)
	if delivered, err := s.Fence(t.Context(), again); !delivered || err != nil {
		t.Errorf("Fence of a sent batch: %v, %v", delivered, err)
	}
	if got := asynqArrivals(t, c); len(got) != 2 {
		t.Errorf("got %v", got)
	}
	expectMarkers(t, c, "asynq:{a}:relay:", window, map[uuid.UUID]string{again.GroupID: "sent {topic}", b.GroupID: "void"})

	// A former owner adds nothing, although asynq has done and deleted all tasks.
	whole := newBatch("a", "b")
	mustSend(t, s, part(whole, 0), part(whole, 1))
	testkit.NoError(t, c.Del(t.Context(), append(keys(t, c, "hash"), "asynq:{a}:pending", "asynq:{b}:pending")...).Err())
	if err := send(t, s, whole); !errors.Is(err, sink.ErrFenced) {
		t.Errorf("got %v, want sink.ErrFenced", err)
	}
}

// The permissions in the package documentation are sufficient.
func TestPermissions_Queues(t *testing.T) {
	t.Parallel()
	for mode, rights := range map[redissink.Mode][]any{
		redissink.Sidekiq: {"~queues", "~queue:*", "+ping", "+sadd", "+lpush"},
		redissink.Asynq: {
			"~asynq:*", "+ping", "+evalsha", "+eval", "+mget", "+set", "+exists", "+hget", "+hset", "+del", "+lpush", "+lpop", "+sadd",
		},
	} {
		server, _, c := start(t, redissink.Config{})
		testkit.NoError(t, c.Do(t.Context(), append([]any{"ACL", "SETUSER", "relay", "on", ">pw"}, rights...)...).Err())
		s := opened(t, redissink.Config{URL: strings.Replace(server.URL, "redis://", "redis://relay:pw@", 1), Mode: mode})
		mustSend(t, s, newBatch("a", "b"), newBatch("a"))
		testkit.NoError(t, s.Check(t.Context()))
		testkit.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "relay", "-lpush").Err())
		expectOutage(t, send(t, s, newBatch("a", "b")), "default")
		if n := len(keys(t, c, "hash")); mode == redissink.Asynq && n != 3 {
			t.Errorf("%d tasks, want 3", n)
		}
	}
}
