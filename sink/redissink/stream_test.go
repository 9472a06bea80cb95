package redissink_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
)

const window = 2 * time.Hour

// start returns a Redis server, a sink for it and another client.
func start(t testing.TB, cfg redissink.Config, args ...string) (*testserver.RedisServer, *redissink.Sink, *redis.Client) {
	t.Helper()
	server := testserver.Redis(t, args...)
	cfg.URL, cfg.DedupeWindow = server.URL, window
	return server, opened(t, cfg), client(t, server)
}

// opened returns a sink that is closed when the test ends.
func opened(t testing.TB, cfg redissink.Config) *redissink.Sink {
	t.Helper()
	s := open(t, cfg)
	t.Cleanup(func() { testkit.NoError(t, s.Close()) })
	return s
}

func contains(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }

func TestStream_Fields(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{})
	b := newBatch(times(6, "orders")...)
	b.Events[1].Key = new("")
	b.Events[2].Headers = outbox.Headers(`{"a": "1"}`)
	b.Events[3].Key, b.Events[3].Headers = new("k☃"), outbox.Headers(`{}`)
	b.Events[4].Payload = []byte("\x00\xff\r\n")
	b.Events[5].Key, b.Events[5].Headers = new("k"), outbox.Headers(`{}`)
	b.DeadLetters = []*buffer.DeadLetter{5: {Error: "no"}}
	why := sink.AppendDeadLetter(nil, b.DeadLetter(5))
	mustSend(t, s, b)

	entries, err := c.Do(t.Context(), "XRANGE", "orders", "-", "+").Slice()
	testkit.NoError(t, err)
	groupID := b.GroupID.String()
	want := [][]string{
		{"id", "", "topic", "orders", "payload", `{"n": 1}`, "group_id", groupID},
		{"id", "", "topic", "orders", "key", "", "payload", `{"n": 1}`, "group_id", groupID},
		{"id", "", "topic", "orders", "payload", `{"n": 1}`, "headers", `{"a": "1"}`, "group_id", groupID},
		{"id", "", "topic", "orders", "key", "k☃", "payload", `{"n": 1}`, "headers", `{}`, "group_id", groupID},
		{"id", "", "topic", "orders", "payload", "\x00\xff\r\n", "group_id", groupID},
		{"id", "", "topic", "orders", "key", "k", "payload", `{"n": 1}`, "headers", `{}`, "group_id", groupID, "dead_letter", string(why)},
	}
	if len(entries) != len(want) {
		t.Fatalf("%d entries; want %d", len(entries), len(want))
	}
	for i, entry := range entries {
		var got []string
		for _, f := range entry.([]any)[1].([]any) {
			got = append(got, f.(string))
		}
		want[i][1] = ids(b)[i]
		if !slices.Equal(got, want[i]) {
			t.Errorf("entry %d: %q, want %q", i, got, want[i])
		}
	}
}

func TestStream_ResendAddsNothing(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{})
	b := newBatch("orders", "orders")
	mustSend(t, s, b, b)
	expectStream(t, c, "orders", ids(b)...)
	expectMarkers(t, c, "{orders}:relay:", window, map[uuid.UUID]string{b.GroupID: sent})
}

func TestStream_PartOfSentBatchAddsNothing(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{})
	b := newBatch("orders", "orders", "orders")
	mustSend(t, s, b)
	p := part(b, 1, 2)
	q := part(p, 2-1)
	mustSend(t, s, p, q)
	expectStream(t, c, "orders", ids(b)...)
	expectMarkers(t, c, "{orders}:relay:", window, map[uuid.UUID]string{b.GroupID: sent, p.GroupID: sent, q.GroupID: sent})
}

// Events that were put back, under a group_id that no marker knows, are sent again.
func TestStream_PutBack(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{})
	b := newBatch("orders", "orders")
	again := batchOf(b.Events, nil)
	mustSend(t, s, b, again, again)
	expectStream(t, c, "orders", slices.Concat(ids(b), ids(b))...)
}

func TestStream_PartVoidsOrigins(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{})
	b := newBatch("orders", "orders", "orders")
	p := part(b, 1, 2)
	q := part(p, 1)
	mustSend(t, s, q)
	expectStream(t, c, "orders", ids(q)...)
	expectMarkers(t, c, "{orders}:relay:", window, map[uuid.UUID]string{b.GroupID: "void", p.GroupID: "void", q.GroupID: sent})
	for _, late := range []*buffer.Batch{b, p} {
		if err := send(t, s, late); !errors.Is(err, sink.ErrFenced) {
			t.Errorf("a former owner: got %v; want sink.ErrFenced", err)
		}
	}
	rest := []*buffer.Batch{part(p, 0), part(b, 0)}
	mustSend(t, s, rest...)
	mustSend(t, s, rest...)
	expectStream(t, c, "orders", slices.Concat(ids(q), ids(rest[0]), ids(rest[1]))...)
}

// The template changes while a part of a batch waits. The origin's marker in the stream
// where the part goes now proves nothing about the part.
func TestStream_MarkerOfOtherTemplate(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{})
	all := opened(t, redissink.Config{URL: "redis://" + c.Options().Addr, Stream: "orders", DedupeWindow: window})
	testkit.NoError(t, c.Set(t.Context(), "bills", "a string", 0).Err())
	b := newBatch("orders", "bills", "orders", "bills")
	expectParts(t, send(t, s, b), sink.ErrUnavailable, 1, 3)
	p := part(b, 1, 3)
	mustSend(t, all, p, p)
	expectStream(t, c, "orders", ids(b)[0], ids(b)[2], ids(b)[1], ids(b)[3])
	expectMarkers(t, c, "{orders}:relay:", window, map[uuid.UUID]string{b.GroupID: "void", p.GroupID: "sent orders"})

	// The part's own marker is of the other template, so the part is added again, not lost.
	testkit.NoError(t, c.Del(t.Context(), "bills").Err())
	mustSend(t, s, p)
	expectStream(t, c, "bills", ids(p)...)
	for _, late := range []*redissink.Sink{s, all} {
		if err := send(t, late, b); !errors.Is(err, sink.ErrFenced) {
			t.Errorf("a former owner: got %v; want sink.ErrFenced", err)
		}
	}

	// A batch that is taken over with another template goes to that template's addresses.
	whole := newBatch("orders", "bills")
	mustSend(t, s, whole)
	mustSend(t, all, whole, whole)
	if got := c.XLen(t.Context(), "orders").Val(); got != 4+1+2 {
		t.Errorf("%d entries; want 7: the order twice and the bill", got)
	}
}

// A former owner's batch may go to a stream that has no void marker of it yet. The parts
// know what it adds there.
func TestStream_FencedAtOneOfSeveral(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{})
	b := newBatch("orders", "bills", "orders", "bills")
	orders, bills := part(b, 0, 2), part(b, 1, 3)
	mustSend(t, s, orders)
	if err := send(t, s, b); !errors.Is(err, sink.ErrFenced) {
		t.Errorf("got %v, want sink.ErrFenced", err)
	}
	mustSend(t, s, bills)
	expectStream(t, c, "orders", ids(orders)...)
	expectStream(t, c, "bills", ids(bills)...)
}

// The stream has room for a few ids more, so XADD fails in the middle.
func TestStream_UndoOnError(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{MaxLen: 1})
	testkit.NoError(t, c.XAdd(t.Context(), &redis.XAddArgs{Stream: "orders", ID: "18446744073709551615-18446744073709551610", Values: []string{"id", "old"}}).Err())
	b := newBatch(append(times(8, "orders"), "bills")...)
	p := part(b, 0, 1, 2, 3, 4, 5, 6, 7)
	q := part(p, 0, 1, 2, 3, 4, 5, 6)
	why := expectParts(t, send(t, s, b), sink.ErrUnavailable, 0, 1, 2, 3, 4, 5, 6, 7)
	if !strings.Contains(why, "at event 6 of 8") {
		t.Errorf("got %s; want a failure at the sixth event", why)
	}
	expectStream(t, c, "orders", "old")
	expectOutage(t, send(t, s, p), "at event 1 of 8")
	expectStream(t, c, "orders", "old")
	expectMarkers(t, c, "{orders}:relay:", window, map[uuid.UUID]string{b.GroupID: "void"})

	// Neither the part nor its own parts take "void" for delivered.
	testkit.NoError(t, c.Del(t.Context(), "orders").Err())
	testkit.NoError(t, c.XGroupCreateMkStream(t.Context(), "orders", "g", "0").Err())
	mustSend(t, s, q)
	expectStream(t, c, "orders", ids(q)...)
	last := part(p, 7)
	mustSend(t, s, last)
	expectStream(t, c, "orders", append(ids(q), ids(last)...)...)
	expectStream(t, c, "bills", ids(b)[8])
}

// The user may do everything but SET, so the marker fails after the events were added.
func TestStream_UndoOnMarkerError(t *testing.T) {
	t.Parallel()
	server, _, c := start(t, redissink.Config{})
	testkit.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "relay", "on", ">pw", "~*", "+@all", "-set").Err())
	s := opened(t, redissink.Config{URL: strings.Replace(server.URL, "redis://", "redis://relay:pw@", 1)})
	b := newBatch("orders", "orders")
	expectOutage(t, send(t, s, b), "at event 0 of 2")
	expectStream(t, c, "orders")
	testkit.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "relay", "+set").Err())
	mustSend(t, s, b)
	expectStream(t, c, "orders", ids(b)...)
}

func TestStream_WrongTypeIsolated(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{})
	testkit.NoError(t, c.Set(t.Context(), "bills", "a string", 0).Err())
	b := newBatch("orders", "bills", "orders", "mails", "bills")
	why := expectParts(t, send(t, s, b), sink.ErrUnavailable, 1, 4)
	if !strings.Contains(why, `redis stream "bills": WRONGTYPE`) {
		t.Errorf("the error does not name the stream: %s", why)
	}
	expectStream(t, c, "orders", ids(b)[0], ids(b)[2])
	expectStream(t, c, "mails", ids(b)[3])

	p := part(b, 1, 4)
	expectOutage(t, send(t, s, p), "WRONGTYPE")
	testkit.NoError(t, c.Del(t.Context(), "bills").Err())
	mustSend(t, s, p, p)
	expectStream(t, c, "bills", ids(p)...)
}

// An outage of all addresses in the batch is not the sink's, unless the sink has only one.
func TestOutage_AddressScope(t *testing.T) {
	t.Parallel()
	server, s, c := start(t, redissink.Config{})
	fixed := opened(t, redissink.Config{URL: server.URL, Stream: "orders"})
	testkit.NoError(t, c.Set(t.Context(), "orders", "a string", 0).Err())
	testkit.NoError(t, c.Set(t.Context(), "bills", "a string", 0).Err())
	for _, b := range []*buffer.Batch{newBatch("orders", "orders"), newBatch("orders", "bills")} {
		err := send(t, s, b)
		expectOutage(t, err, "WRONGTYPE")
		expectParts(t, err, sink.ErrUnavailable, 0, 1)
	}
	err := send(t, fixed, newBatch("orders", "bills"))
	expectOutage(t, err, "WRONGTYPE")
	if errors.As(err, new(*sink.BatchError)) {
		t.Errorf("got %v; want an outage of the sink", err)
	}
}

func TestPermissions_Stream(t *testing.T) {
	t.Parallel()
	server, _, c := start(t, redissink.Config{})
	user := func(rights ...any) string {
		t.Helper()
		testkit.NoError(t, c.Do(t.Context(), append([]any{"ACL", "SETUSER", "relay", "on", ">pw"}, rights...)...).Err())
		return strings.Replace(server.URL, "redis://", "redis://relay:pw@", 1)
	}
	s := opened(t, redissink.Config{MaxLen: 100, URL: user("resetkeys", "~orders", "~{orders}:relay:*",
		"+ping", "+evalsha", "+eval", "+mget", "+set", "+xadd", "+xrevrange", "+xdel", "+xtrim")})
	b := newBatch("orders", "orders")
	mustSend(t, s, b, part(b, 1))
	mustSend(t, s, part(newBatch("orders", "orders"), 0))
	testkit.NoError(t, s.Check(t.Context()))
	testkit.NoError(t, c.Do(t.Context(), "XSETID", "orders", "18446744073709551615-18446744073709551614").Err())
	expectOutage(t, send(t, s, newBatch("orders", "orders")), "at event 2 of 2")
	if n := c.XLen(t.Context(), "orders").Val(); n != 3 {
		t.Errorf("%d entries; want the 3 from before", n)
	}

	// Without permission to undo, the error says that events remain.
	user("-xdel")
	testkit.NoError(t, c.Del(t.Context(), "orders").Err())
	testkit.NoError(t, c.XAdd(t.Context(), &redis.XAddArgs{Stream: "orders", ID: "18446744073709551615-18446744073709551614", Values: []string{"id", "old"}}).Err())
	expectOutage(t, send(t, s, newBatch("orders", "orders")), "remain")
}

func TestStream_ScriptsFlushed(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{})
	var sent []string
	for range 3 {
		b := newBatch("orders", "bills", "orders")
		mustSend(t, s, b, b)
		sent = append(sent, ids(b)[0], ids(b)[2])
		testkit.NoError(t, c.ScriptFlush(t.Context()).Err())
	}
	expectStream(t, c, "orders", sent...)
	if n := c.XLen(t.Context(), "bills").Val(); n != 3 {
		t.Errorf("%d entries; want 3", n)
	}
}

func TestStream_MaxLen(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{MaxLen: 500})
	for range 10 {
		mustSend(t, s, newBatch(times(300, "orders")...))
	}
	if n := c.XLen(t.Context(), "orders").Val(); n < 500 || n > 700 {
		t.Errorf("%d entries; want about 500, and no fewer", n)
	}
}

func TestStream_HashTags(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{})
	good := []string{"{eu}:orders", "orders:{eu}", "eu", "{eu}", "a{b}c{d", "{a}}"}
	bad := []string{"{}", "a{}b", "a}b", "a{b", "{", "}{"}
	b := newBatch(append(slices.Clone(good), bad...)...)
	why := expectParts(t, send(t, s, b), sink.ErrPermanent, 6, 7, 8, 9, 10, 11)
	if !strings.Contains(why, "hash tag") {
		t.Errorf("got %s; want an error about the hash tag", why)
	}
	for i, stream := range good {
		expectStream(t, c, stream, ids(b)[i])
	}
	expectMarkers(t, c, "{eu}:orders:relay:", window, map[uuid.UUID]string{b.GroupID: sent})
	expectMarkers(t, c, "orders:{eu}:relay:", window, map[uuid.UUID]string{b.GroupID: sent})

	tagged := opened(t, redissink.Config{URL: "redis://" + c.Options().Addr, Stream: "{tag}:{topic}"})
	mustSend(t, tagged, newBatch("orders"))
	if n := c.XLen(t.Context(), "{tag}:orders").Val(); n != 1 {
		t.Errorf("%d entries in the stream with the template's hash tag; want 1", n)
	}
}

func TestSend_EventWithoutAddress(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{Stream: "{key}"})
	b := newBatch("orders", "orders", "orders")
	b.Events[0].Key, b.Events[2].Key = new("seven"), new("")
	expectParts(t, send(t, s, b), sink.ErrPermanent, 1, 2)
	expectStream(t, c, "seven", ids(b)[0])

	// A rejection and an outage in one batch keep their kinds.
	testkit.NoError(t, c.Del(t.Context(), "seven").Err())
	testkit.NoError(t, c.Set(t.Context(), "seven", "", 0).Err())
	var batch *sink.BatchError
	again := newBatch("orders", "orders")
	again.Events[0].Key = new("seven")
	if err := send(t, s, again); !errors.As(err, &batch) || len(batch.Events) != 2 ||
		!errors.Is(batch.Events[0].Err, sink.ErrUnavailable) || !errors.Is(batch.Events[1].Err, sink.ErrPermanent) {
		t.Errorf("got %v; want an outage and a rejection", err)
	}
}

func TestSend_SplitsLargeBatch(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{}, "--appendonly", "no")
	b := newBatch(times(4, "orders")...)
	large := []byte(`"` + strings.Repeat("x", 22<<20) + `"`)
	for i := range b.Events {
		b.Events[i].Payload = large
	}
	var split *sink.SplitError
	if err := send(t, s, b); !errors.As(err, &split) {
		t.Fatalf("got %v; want a *sink.SplitError", err)
	}
	if n := c.Exists(t.Context(), "orders").Val(); n != 0 {
		t.Error("some events were sent")
	}
	var all []int
	for _, g := range split.Groups {
		all = append(all, g.Indexes...)
		mustSend(t, s, part(b, g.Indexes...))
	}
	if len(split.Groups) != 2 || !slices.Equal(all, []int{0, 1, 2, 3}) {
		t.Errorf("split into %v", split.Groups)
	}
	if n := c.XLen(t.Context(), "orders").Val(); n != 4 {
		t.Errorf("%d entries; want 4", n)
	}
}
