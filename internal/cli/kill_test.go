package cli

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/internal/testserver"
)

// destination is a sink's server that returns the ids that arrived, in any order.
type destination struct {
	url   string
	mode  string // of a Redis sink
	count func(ctx context.Context) int
	ids   func(t *testing.T) []int64
}

func redisStream(t *testing.T) destination {
	url := testserver.SharedRedis(t)
	client := connect(t, url)
	return destination{
		url:   url,
		count: func(ctx context.Context) int { return int(client.XLen(ctx, "orders").Val()) },
		ids: func(t *testing.T) (ids []int64) {
			entries, err := client.XRange(t.Context(), "orders", "-", "+").Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				ids = append(ids, parseID(t, e.Values["id"].(string)))
			}
			return ids
		},
	}
}

func jetStream(t *testing.T) destination {
	server := testserver.NATS(t)
	conn, err := nats.Connect(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	state := func(ctx context.Context) int {
		info, err := stream.Info(ctx)
		if err != nil {
			return 0
		}
		return int(info.State.Msgs) //nolint:gosec // thousands
	}
	return destination{
		url:   server.URL,
		count: state,
		ids: func(t *testing.T) (ids []int64) {
			consumer, err := stream.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
			if err != nil {
				t.Fatal(err)
			}
			for n := state(t.Context()); len(ids) < n; {
				events, err := consumer.Fetch(min(1000, n-len(ids)))
				if err != nil {
					t.Fatal(err)
				}
				for e := range events.Messages() {
					_, name, _ := strings.Cut(e.Headers().Get("Nats-Msg-Id"), ":")
					id, _, _ := strings.Cut(name, ":")
					ids = append(ids, parseID(t, id))
				}
			}
			return ids
		},
	}
}

func parseID(t *testing.T, text string) int64 {
	t.Helper()
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A relay is killed ten times during a drain and restarted. Every event arrives once.
func TestKill9(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) destination{"redis": redisStream, "jetstream": jetStream} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to, db, path := killable(t, open)
			for range 10 {
				r := start(t, nil, "run", "-c", path)
				waitForMore(t, to, killEvents)
				r.signal(os.Kill)
				r.exit()
			}
			finish(t, db, to, path, killEvents)
		})
	}
}

// Two relays share the work and are killed in turn.
func TestKill9_TwoRelays(t *testing.T) {
	t.Parallel()
	to, db, path := killable(t, redisStream)
	relays := []*relay{start(t, nil, "run", "-c", path), start(t, nil, "run", "-c", path)}
	for i := range 6 {
		waitForMore(t, to, killEvents)
		relays[i%2].signal(os.Kill)
		relays[i%2].exit()
		relays[i%2] = start(t, nil, "run", "-c", path)
	}
	finish(t, db, to, path, killEvents)
	for _, r := range relays {
		r.signal(syscall.SIGTERM)
		if code := r.exit(); code != 0 {
			t.Errorf("exit status %d", code)
		}
	}
}

// One of two relays is stopped for longer than its lease, and continues after the other has taken over its batches.
// Every event arrives once.
func TestRun_StoppedBeyondLease(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) destination{"redis": redisStream, "jetstream": jetStream} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to, db, path := killable(t, open)
			relays := []*relay{start(t, nil, "run", "-c", path), start(t, nil, "run", "-c", path)}
			events := killEvents
			for i := range 4 {
				waitForMore(t, to, events)
				stopped := relays[i%2]
				stopped.signal(syscall.SIGSTOP)
				// Its leases are over when nothing that was claimed before is leased
				// any more, or the other one has it.
				var before time.Time
				if err := db.conn.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&before); err != nil {
					t.Fatal(err)
				}
				wait(t, time.Minute, func() error {
					if n := db.count("SELECT count(*) FROM outbox_batches WHERE claimed_at <= $1 AND lease_no = 1 AND state = 'leased'", before); n > 0 {
						return fmt.Errorf("%d earlier batches are still leased", n)
					}
					return nil
				})
				stopped.signal(syscall.SIGCONT)
				db.insert(20_000) // the other one may be through with all there was
				events += 20_000
			}
			finish(t, db, to, path, events)
			for _, r := range relays {
				r.signal(syscall.SIGTERM)
				if code := r.exit(); code != 0 {
					t.Errorf("exit status %d", code)
				}
			}
		})
	}
}

// killEvents is enough for ten kills during a drain.
const killEvents = 40_000

func killable(t *testing.T, open func(*testing.T) destination) (destination, *database, string) {
	t.Helper()
	to, db := open(t), newDatabase(t)
	db.insert(killEvents)
	// Small batches and a short lease: more moments to be killed at, and a soon
	// take over.
	return to, db, write(t, to.configuration(db, "    batch_size: 50", "    lease: 1s"))
}

// waitForMore waits until the drain has continued for a while.
func waitForMore(t *testing.T, to destination, events int) {
	t.Helper()
	more := to.count(t.Context()) + rand.IntN(1500) //nolint:gosec // chance, not secrecy
	testserver.Eventually(t, func() error {
		if n := to.count(t.Context()); n <= more && n < events {
			return fmt.Errorf("%d events arrived, want more than %d", n, more)
		}
		return nil
	})
}

// finish runs one relay until the buffer is empty and checks the arrivals by id.
func finish(t *testing.T, db *database, to destination, path string, events int) {
	t.Helper()
	r := start(t, nil, "run", "-c", path)
	r.waitForLog("pipeline runs") // before it a signal ends it as it ends any program
	wait(t, 2*time.Minute, func() error {
		if n := db.count("SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_batches)"); n != 0 {
			return fmt.Errorf("%d rows are left in buffer and ledger", n)
		}
		return nil
	})
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	ids := to.ids(t)
	slices.Sort(ids)
	for i, id := range ids {
		if id != int64(i+1) {
			t.Fatalf("found event %d, want %d: it is missing or duplicated", id, i+1)
		}
	}
	if len(ids) != events {
		t.Fatalf("%d events arrived, want %d", len(ids), events)
	}
	if n := db.count("SELECT count(*) FROM outbox_dead_letters"); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

func wait(t *testing.T, atMost time.Duration, done func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), atMost)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := done()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-tick.C:
		}
	}
}
