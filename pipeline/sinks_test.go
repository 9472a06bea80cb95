package pipeline_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
	"github.com/outboxrelay/relay/sink/natssink"
	"github.com/outboxrelay/relay/sink/redissink"
)

// destination is a sink and what arrived there.
type destination struct {
	sink.Sink
	// arrived are the ids of a topic's events, one for each time it came; count is
	// how many that are.
	arrived func(t testing.TB, topic string) []int64
	count   func(t testing.TB, topic string) int
}

// AddressOf and OneAddress are the sink's own.
func (d destination) AddressOf(e *outbox.Event) (string, bool) {
	if a, ok := d.Sink.(sink.Addresser); ok {
		return a.AddressOf(e)
	}
	return "", false
}

func (d destination) OneAddress() bool {
	a, ok := d.Sink.(sink.Addresser)
	return !ok || a.OneAddress()
}

func closeSink(t testing.TB, s sink.Sink) {
	t.Cleanup(func() { testkit.NoError(t, s.Close()) })
}

// redisAt is a sink to Redis streams.
func redisAt(t testing.TB, url string) destination {
	t.Helper()
	s, err := redissink.New(redissink.Config{URL: url})
	testkit.NoError(t, err)
	closeSink(t, s)
	client := redisClient(t, url)
	return destination{Sink: s, arrived: func(t testing.TB, topic string) (ids []int64) {
		t.Helper()
		entries, err := client.XRange(t.Context(), topic, "-", "+").Result()
		testkit.NoError(t, err)
		for _, e := range entries {
			ids = append(ids, number(t, e.Values["id"]))
		}
		return ids
	}, count: func(t testing.TB, topic string) int {
		t.Helper()
		n, err := client.XLen(t.Context(), topic).Result()
		testkit.NoError(t, err)
		return int(n)
	}}
}

func redisClient(t testing.TB, url string) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(url)
	testkit.NoError(t, err)
	client := redis.NewClient(opts)
	t.Cleanup(func() { testkit.NoError(t, client.Close()) })
	return client
}

func number(t testing.TB, v any) int64 {
	t.Helper()
	id, err := strconv.ParseInt(fmt.Sprint(v), 10, 64)
	testkit.NoError(t, err)
	return id
}

// expectArrivals waits until that many events of a topic have come.
func (d destination) expectArrivals(t testing.TB, topic string, n int) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if got := d.count(t, topic); got < n {
			return fmt.Errorf("%d of %d events have arrived", got, n)
		}
		return nil
	})
}

// natsAt is a sink to JetStream. Each topic wants a stream (see addStream).
func natsAt(t testing.TB, url string) destination {
	t.Helper()
	s, err := natssink.New(natssink.Config{URL: url})
	testkit.NoError(t, err)
	closeSink(t, s)
	js := jetStream(t, url)
	return destination{Sink: s, arrived: func(t testing.TB, topic string) (ids []int64) {
		t.Helper()
		consumer, err := js.OrderedConsumer(t.Context(), topic, jetstream.OrderedConsumerConfig{})
		testkit.NoError(t, err)
		messages, err := consumer.FetchNoWait(1 << 20)
		testkit.NoError(t, err)
		for m := range messages.Messages() {
			ids = append(ids, idOf(t, m))
		}
		testkit.NoError(t, messages.Error())
		return ids
	}, count: func(t testing.TB, topic string) int {
		t.Helper()
		stream, err := js.Stream(t.Context(), topic)
		testkit.NoError(t, err)
		return int(stream.CachedInfo().State.Msgs) //nolint:gosec // a test's number
	}}
}

// idOf returns the id of a message's event.
func idOf(t testing.TB, m jetstream.Msg) int64 {
	t.Helper()
	_, name, _ := strings.Cut(m.Headers().Get(jetstream.MsgIDHeader), ":")
	id, _, _ := strings.Cut(name, ":")
	return number(t, id)
}

func jetStream(t testing.TB, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
	testkit.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	testkit.NoError(t, err)
	return js
}

// addStream makes the stream of a topic.
func addStream(t testing.TB, url, topic string) {
	t.Helper()
	_, err := jetStream(t, url).CreateStream(t.Context(), jetstream.StreamConfig{Name: topic, Subjects: []string{topic}})
	testkit.NoError(t, err)
}

// receiver is an HTTP server that takes batches.
type receiver struct {
	*httptest.Server

	mu sync.Mutex
	// answer says which status to answer a request with these ids, or how to close the connection; nil: 200. A request
	// whose key was accepted before gets the same answer again.
	answer   func(ids []int64) int
	requests [][]int64
	accepted map[string][]int64 // by topic
	keys     map[string]bool    // the accepted ones, if the receiver knows them; may be nil
}

// Instead of a status: the connection is closed without a response.
const (
	accepts = -iota - 1
	acceptsNothing
)

func newReceiver(t testing.TB) *receiver {
	r := &receiver{accepted: map[string][]int64{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	var body struct {
		Events []struct {
			ID    int64 `json:"id,string"`
			Topic string
		}
	}
	if request.Method != http.MethodPost { // the sink's Check
		return
	}
	if err := json.NewDecoder(request.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	var ids []int64
	for _, e := range body.Events {
		ids = append(ids, e.ID)
	}
	r.mu.Lock()
	answer := r.answer
	r.mu.Unlock()
	status := http.StatusOK
	if answer != nil {
		status = answer(ids)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, ids)
	key := request.Header.Get("Idempotency-Key")
	if (status == http.StatusOK || status == accepts) && !r.keys[key] {
		for _, e := range body.Events {
			r.accepted[e.Topic] = append(r.accepted[e.Topic], e.ID)
		}
		if r.keys != nil {
			r.keys[key] = true
		}
	}
	if status < 0 {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(status)
}

// answers sets the answer.
func (r *receiver) answers(answer func(ids []int64) int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

// httpAt is a sink to a receiver.
func httpAt(t testing.TB, r *receiver) destination {
	t.Helper()
	s, err := httpsink.New(httpsink.Config{URL: r.URL})
	testkit.NoError(t, err)
	closeSink(t, s)
	return destination{Sink: s, arrived: func(_ testing.TB, topic string) []int64 {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.Clone(r.accepted[topic])
	}, count: func(_ testing.TB, topic string) int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.accepted[topic])
	}}
}

var errTest = errors.New("refused by the test")
