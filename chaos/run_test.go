//go:build unix

package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testserver"
)

// run is one run: its servers, its relays, and the account of the events.
type run struct {
	t    *testing.T
	seed uint64
	dir  string // relay's program, its configurations and logs; kept after a failure

	postgres *testserver.PostgresServer
	redis    *testserver.RedisServer
	nats     *testserver.NATSServer
	cache    *redis.Client    // not through a proxy, as all the test's own connections
	stream   jetstream.Stream // of toJetStream
	fanned   jetstream.Stream // of the sink bus
	api      *bulkAPI         // of the sink crm
	relays   []*relay

	toRedis, toJetStream *account
	log, bus, crm        *account // the sinks of one pipeline
	producing            tally
	faults               faults
	ways                 ways
	takeOvers            int64
	takeOverMedian       time.Duration // after the lease's end

	mu         sync.Mutex
	violations []string
}

const (
	streamName      = "SHOP"
	fannedName      = "FAN"
	duplicateWindow = 10 * time.Minute
	maxPayload      = 64 << 10 // of the NATS server
	maxEvent        = 32 << 10 // of the stream
	maxStream       = 20 << 30 // bytes of the stream, which a run does not reach
)

func newRun(t *testing.T) *run {
	t.Helper()
	r := &run{t: t, seed: pickSeed(), faults: newFaults()}
	err := checkFlags()
	r.check(err)
	if r.dir, err = os.MkdirTemp("", "relay-chaos-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d; configurations, logs and arrivals are in %s", r.seed, r.dir)
		} else if err := os.RemoveAll(r.dir); err != nil {
			t.Error(err)
		}
	})
	r.toRedis = r.newAccount(&feed{pipeline: "to-redis", table: "outbox_events"}, "")
	r.toJetStream = r.newAccount(&feed{pipeline: "to-jetstream", table: "outbox_events2"}, "")
	fan := &feed{pipeline: "fan", table: "outbox_events3"}
	r.log = r.newAccount(fan, "log")
	r.bus = r.newAccount(fan, "bus", "fan.orders.#", "fan.orders", "fan.refunds")
	r.crm = r.newAccount(fan, "crm", "fan.payments", "fan.refunds")
	r.startServers()
	r.startRelays()
	return r
}

func (r *run) startServers() {
	r.postgres = testserver.OwnPostgres(r.t, testserver.PostgresOptions{
		Durable: true,
		Settings: map[string]string{
			"checkpoint_timeout": "30s", "max_wal_size": "512MB", // it comes back soon after a crash
		},
	})
	r.redis = testserver.Redis(r.t)
	r.cache = redis.NewClient(&redis.Options{Addr: r.redis.Addr, MaxRetries: -1})
	r.t.Cleanup(func() { r.check(r.cache.Close()) })
	r.nats = testserver.NATS(r.t, func(o *server.Options) {
		o.MaxPayload = maxPayload
		o.JetStreamMaxStore = maxStream // by default the server takes three quarters of the free disk, which may be less
	})
	conn, err := nats.Connect(r.nats.URL, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	r.check(err)
	r.t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	r.check(err)
	// Nothing is removed from the stream, because after a restart the server knows only
	// the ids of messages that are still in it.
	create := func(name, subjects string) jetstream.Stream {
		stream, err := js.CreateStream(r.t.Context(), jetstream.StreamConfig{
			Name: name, Subjects: []string{subjects}, Duplicates: duplicateWindow, MaxMsgSize: maxEvent,
			MaxBytes: maxStream / 2, AllowBatchPublish: true,
		})
		r.check(err)
		return stream
	}
	r.stream, r.fanned = create(streamName, "shop.>"), create(fannedName, "fan.>")
	r.watchIngest(conn)
	r.api = r.startAPI()
}

// accounts returns the account of each sink.
func (r *run) accounts() []*account { return []*account{r.toRedis, r.toJetStream, r.log, r.bus, r.crm} }

// tablesSQL creates chaos_committed, which is the truth: its row commits with its event
// or not at all. owed has the bits of the sinks that match the event, good of those that accept it. chaos_take_overs counts batches that another owner leases because the
// one before did not finish, chaos_early the delayed events that were deleted before they were available.
const tablesSQL = `
CREATE TABLE chaos_committed (pipeline text NOT NULL, id bigint NOT NULL, owed int NOT NULL, good int NOT NULL);
CREATE TABLE chaos_take_overs (late interval NOT NULL);
CREATE FUNCTION chaos_taken_over() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO public.chaos_take_overs VALUES (clock_timestamp() - OLD.due_at); RETURN NULL; END $$;
CREATE TRIGGER chaos_taken_over AFTER UPDATE ON outbox_batches FOR EACH ROW
  WHEN (OLD.state = 'leased' AND NEW.lease_no > OLD.lease_no) EXECUTE FUNCTION chaos_taken_over();
CREATE TABLE chaos_early (pipeline_table text NOT NULL, id bigint NOT NULL);
CREATE FUNCTION chaos_early() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO public.chaos_early VALUES (TG_TABLE_NAME, OLD.id); RETURN NULL; END $$;
CREATE TRIGGER chaos_early AFTER DELETE ON outbox_events FOR EACH ROW WHEN (OLD.available_at > clock_timestamp()) EXECUTE FUNCTION chaos_early();
CREATE TRIGGER chaos_early AFTER DELETE ON outbox_events2 FOR EACH ROW WHEN (OLD.available_at > clock_timestamp()) EXECUTE FUNCTION chaos_early();
CREATE TRIGGER chaos_early AFTER DELETE ON outbox_events3 FOR EACH ROW WHEN (OLD.available_at > clock_timestamp()) EXECUTE FUNCTION chaos_early()`

func (r *run) startRelays() {
	program := filepath.Join(r.dir, "relay")
	r.check(command(r.t.Context(), "go", "build", "-o", program, "../cmd/relay"))
	for i := range relays {
		proxies := r.startProxies(map[string]string{
			"postgres": hostOf(r.t, r.postgres.URL), "redis": r.redis.Addr, "nats": hostOf(r.t, r.nats.URL), "api": r.api.address,
		})
		p := &relay{name: fmt.Sprintf("relay %d", i+1), program: program, proxies: proxies}
		p.log = filepath.Join(r.dir, fmt.Sprintf("relay-%d.log", i+1))
		p.config = filepath.Join(r.dir, fmt.Sprintf("relay-%d.yaml", i+1))
		r.check(os.WriteFile(p.config, []byte(r.configuration(i, proxies)), 0o600))
		r.relays = append(r.relays, p)
	}
	r.check(command(r.t.Context(), program, "migrate", "-c", r.relays[0].config))
	r.exec(tablesSQL)
	r.exec(halvedSQL)
	for _, p := range r.relays {
		r.check(p.start())
		r.t.Cleanup(func() { r.check(p.kill()) })
	}
}

// configuration returns relay.yaml of a process, with small batches and short times, so
// that faults hit more often.
func (r *run) configuration(i int, proxies *proxies) string {
	size := []int{100, 300, 1000}[i%3]
	return fmt.Sprintf(`admin: {listen: ""}
log: {level: debug}
shutdown_timeout: 2s
pipelines:
  - name: to-redis
    source: {url: %[1]q, table: outbox_events}
    batch_size: %[4]d
    claim: %[6]s
    wake: notify
    lease: 2s
    sink: {url: "redis://%[2]s", stream: "{topic}"}
    retry: {initial: 100ms, max: 5s}
  - name: to-jetstream
    source: {url: %[1]q, table: outbox_events2}
    batch_size: %[5]d
    claim: %[6]s
    wake: poll
    lease: 2s
    sink: {url: "nats://%[3]s", subject: "{topic}"}
    retry: {initial: 100ms, max: 5s}
  - name: fan
    source: {url: %[1]q, table: outbox_events3}
    batch_size: %[4]d
    claim: %[6]s
    wake: notify
    lease: 2s
    retry: {initial: 100ms, max: 5s}
    sinks:
      - {name: log, url: "redis://%[2]s", stream: "{topic}"}
      - {name: bus, url: "nats://%[3]s", subject: "{topic}", match: [%[7]s]}
      - {name: crm, url: "http://%[8]s/batch", timeout: 2s, match: [%[9]s]}
`, withHost(r.t, r.postgres.URL, proxies.address("postgres")), proxies.address("redis"), proxies.address("nats"),
		size, 1100-size, *claim, strings.Join(r.bus.match, ", "), proxies.address("api"), strings.Join(r.crm.match, ", "))
}

func (r *run) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// violation records a violation; the run continues.
func (r *run) violation(format string, a ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf(format, a...)
	r.violations = append(r.violations, text)
	r.t.Errorf("seed %d: %s", r.seed, text)
}

func (r *run) exec(sql string) {
	r.t.Helper()
	conn, err := pgx.Connect(r.t.Context(), r.postgres.URL)
	r.check(err)
	defer conn.Close(context.WithoutCancel(r.t.Context()))
	_, err = conn.Exec(r.t.Context(), sql)
	r.check(err)
}

// again returns the command that draws the same faults.
func (r *run) again() string {
	return fmt.Sprintf("go test ./chaos -run TestChaos -count 1 -v -timeout 60m -chaos.for %v -chaos.rate %d -chaos.claim %s -chaos.seed %d",
		*lasts, eventsPerSecond(), *claim, r.seed)
}
