//go:build unix

package chaos

import (
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/outboxrelay/relay/internal/testkit"
)

// trials are the faults that the mix of TestChaos cannot have: each needs a database, a
// sink or a configuration of its own.
var trials = map[string]func(*trial){
	"SQLiteTwoProcesses":   (*trial).sqliteTwoProcesses,
	"MarkedTable":          (*trial).markedTable,
	"Inbox":                (*trial).inbox,
	"SinksChange":          (*trial).sinksChange,
	"SlowAnswers":          (*trial).slowAnswers,
	"StreamMadeAgain":      (*trial).streamMadeAgain,
	"RedisClusterFailover": (*trial).redisClusterFailover,
	"TwoVersions":          (*trial).twoVersions,
	"Upgrade":              (*trial).upgradePostgres,
	"UpgradeSQLite":        (*trial).upgradeSQLite,
}

// TestFault runs the trials. Each accounts for its events by id.
func TestFault(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "relay")
	testkit.NoError(t, command(t.Context(), "go", "build", "-o", program, "../cmd/relay"))
	dir := t.TempDir()
	earlier := sync.OnceValues(func() (string, error) { return buildEarlier(t.Context(), dir, *oldRevision) })
	all := maps.Clone(trials)
	maps.Copy(all, trialsOfSystem)
	for name, run := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(&trial{T: t, program: program, earlier: earlier, dir: t.TempDir(), lasts: *lasts / time.Duration(len(all))})
		})
	}
}

// trial is one fault with relays and events of its own.
type trial struct {
	*testing.T
	program string                             // the relay
	earlier func() (program string, err error) // builds a relay of an earlier version
	dir     string                             // of its configurations and logs
	lasts   time.Duration                      // in a long run
}

// rounds yields n rounds, and in a long run as many as its share of -chaos.for allows.
func (x *trial) rounds(n int) iter.Seq[int] {
	end := time.Now().Add(x.lasts)
	return func(yield func(int) bool) {
		for i := 0; i < n || isLong() && time.Now().Before(end); i++ {
			if !yield(i) {
				return
			}
		}
	}
}

// pipeline returns a relay.yaml with small batches and short times. more are further keys
// of the pipeline.
func pipeline(from *source, sink string, more ...string) string {
	return fmt.Sprintf(`admin: {listen: ""}
shutdown_timeout: 2s
pipelines:
  - name: shop
    source: {url: %q}
    batch_size: 20
    workers: 2
    lease: 2s
    retry: {initial: 100ms, max: 1s}
    sink: %s
`, from.url, sink) + strings.Join(more, "\n")
}

// start starts a relay after migrating its database.
func (x *trial) start(name, yaml string) *relay {
	x.Helper()
	p := &relay{name: name, program: x.program, config: filepath.Join(x.dir, name+".yaml"), log: filepath.Join(x.dir, name+".log")}
	testkit.NoError(x, os.WriteFile(p.config, []byte(yaml), 0o600))
	testkit.NoError(x, command(x.Context(), x.program, "migrate", "-c", p.config))
	testkit.NoError(x, p.start())
	x.Cleanup(func() {
		if x.Failed() {
			x.Logf("%s\n%s", p.name, p.said())
		}
		testkit.NoError(x, p.kill())
	})
	return p
}

// again kills a relay and starts it again.
func (x *trial) again(p *relay) {
	x.Helper()
	testkit.NoError(x, errors.Join(p.kill(), p.start()))
}

// end ends the relays, which have nothing to do.
func (x *trial) end(relays ...*relay) {
	x.Helper()
	for _, p := range relays {
		if status, err := p.end(); status != 0 || err != nil {
			x.Errorf("%s ended with status %d: %v", p.name, status, err)
		}
	}
}

// source is a buffer and what was committed to it.
type source struct {
	x         *trial
	url       string
	db        *sql.DB
	committed map[int64]bool
}

func (x *trial) open(driver, dsn, url string) *source {
	x.Helper()
	db, err := sql.Open(driver, dsn)
	testkit.NoError(x, err)
	x.Cleanup(func() { testkit.NoError(x, db.Close()) })
	return &source{x: x, url: url, db: db, committed: map[int64]bool{}}
}

func (x *trial) postgres(url string) *source { return x.open("pgx", url, url) }

func (x *trial) sqlite(name string) *source {
	path := filepath.Join(x.dir, name+".db")
	return x.open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(60000)", "sqlite://"+path)
}

// insert commits n events, a few in a transaction, and rolls every fourth transaction back.
func (s *source) insert(n int, topics ...string) error {
	const perTransaction = 10
	for i := 0; n > 0; i++ {
		ids, err := s.transaction(topics[i%len(topics)], min(n, perTransaction), i%4 != 3)
		if err != nil {
			return err
		}
		for _, id := range ids {
			s.committed[id] = true
		}
		n -= len(ids)
	}
	return nil
}

// during inserts n events and injects a fault meanwhile, when the first of them arrived.
func (s *source) during(n int, count func() int64, fault func(), topics ...string) {
	s.x.Helper()
	before := count()
	inserted := make(chan error, 1)
	go func() { inserted <- s.insert(n, topics...) }()
	testkit.Eventually(s.x, func() error {
		if now := count(); now <= before {
			return fmt.Errorf("%d arrived; expected more", now)
		}
		return nil
	})
	fault()
	testkit.NoError(s.x, testkit.Receive(s.x, "the end of inserting", inserted))
}

const insertEventSQL = `
INSERT INTO outbox_events (topic, payload) VALUES ($1, '{"a": 1}') RETURNING id`

// transaction returns the ids that it committed.
func (s *source) transaction(topic string, n int, commit bool) (ids []int64, err error) {
	ctx := s.x.Context()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	for range n {
		var id int64
		if err := tx.QueryRowContext(ctx, insertEventSQL, topic).Scan(&id); err != nil {
			return nil, errors.Join(err, tx.Rollback())
		}
		ids = append(ids, id)
	}
	if !commit {
		return nil, tx.Rollback()
	}
	return ids, tx.Commit()
}

const remainingSQL = `
SELECT (SELECT count(*) FROM outbox_events), (SELECT count(*) FROM outbox_batches), (SELECT count(*) FROM outbox_dead_letters)`

// drained waits until everything is delivered and nothing is dead.
func (s *source) drained() {
	s.x.Helper()
	testkit.Eventually(s.x, func() error {
		var events, batches, dead int
		err := s.db.QueryRowContext(s.x.Context(), remainingSQL).Scan(&events, &batches, &dead)
		if err == nil && events+batches+dead > 0 {
			err = fmt.Errorf("%d events, %d batches and %d dead letters are left", events, batches, dead)
		}
		return err
	})
}

// account compares what arrived, by id, with what was committed. twice says whether an
// event may arrive again.
func (s *source) account(arrived map[int64]int, twice bool) {
	s.x.Helper()
	var lost, again, strange []int64
	for id := range s.committed {
		switch n := arrived[id]; {
		case n == 0:
			lost = append(lost, id)
		case n > 1 && !twice:
			again = append(again, id)
		}
	}
	for id := range arrived {
		if !s.committed[id] {
			strange = append(strange, id)
		}
	}
	s.x.Logf("%d events committed", len(s.committed))
	for what, ids := range map[string][]int64{"lost": lost, "delivered more than once": again, "never committed, but delivered": strange} {
		if len(ids) > 0 {
			slices.Sort(ids)
			s.x.Errorf("%d events %s: %v", len(ids), what, ids[:min(20, len(ids))])
		}
	}
}

// streamsOf counts and reads the entries of Redis streams.
type streamsOf struct {
	x       *trial
	client  redis.UniversalClient
	streams []string
}

func (x *trial) redis(addrs []string, streams ...string) streamsOf {
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addrs})
	x.Cleanup(func() { testkit.NoError(x, client.Close()) })
	return streamsOf{x, client, streams}
}

// count returns the number of entries, of those streams that answer.
func (r streamsOf) count() (n int64) {
	for _, stream := range r.streams {
		n += r.client.XLen(r.x.Context(), stream).Val()
	}
	return n
}

// arrived returns how often each event is in the streams.
func (r streamsOf) arrived() map[int64]int {
	r.x.Helper()
	found := map[int64]int{}
	for _, stream := range r.streams {
		entries, err := r.client.XRange(r.x.Context(), stream, "-", "+").Result()
		testkit.NoError(r.x, err)
		for _, e := range entries {
			v, err := fromRedis(e)
			testkit.NoError(r.x, err)
			found[v.ID]++
		}
	}
	return found
}
