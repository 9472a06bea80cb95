package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/internal/testdb"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// database is a PostgreSQL database and the application that works in it.
type database struct {
	url string
	app *pgxpool.Pool
}

// newDatabase makes a migrated database on the server that tests share.
func newDatabase(t testing.TB) *database {
	t.Helper()
	return migratedAt(t, testdb.Postgres(t, postgres.SchemaConfig{}))
}

func databaseAt(t testing.TB, url string) *database {
	t.Helper()
	migrate(t, url)
	return migratedAt(t, url)
}

func migratedAt(t testing.TB, url string) *database {
	t.Helper()
	app, err := pgxpool.New(t.Context(), url)
	testkit.NoError(t, err)
	t.Cleanup(app.Close)
	return &database{url: url, app: app}
}

func migrate(t testing.TB, url string) {
	t.Helper()
	_, err := postgres.Migrate(t.Context(), url, postgres.SchemaConfig{})
	testkit.NoError(t, err)
}

// buffer opens the buffer as a process would.
func (d *database) buffer(t testing.TB, owner string) *postgres.Buffer {
	t.Helper()
	return bufferAt(t, d.url, owner)
}

func bufferAt(t testing.TB, url, owner string) *postgres.Buffer {
	t.Helper()
	b, err := postgres.Open(postgres.Config{URL: url, Pipeline: "orders", Owner: owner, Connections: 12})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	return b
}

const insertSQL = `
INSERT INTO outbox_events (topic, key, payload)
SELECT $1, 'customer-' || n % 10, jsonb_build_object('n', n) FROM generate_series(1, $2::int) n
RETURNING id`

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// insertBy inserts events of a topic and returns their ids.
func insertBy(t testing.TB, q querier, topic string, n int) []int64 {
	t.Helper()
	rows, err := q.Query(t.Context(), insertSQL, topic, n)
	testkit.NoError(t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	testkit.NoError(t, err)
	return ids
}

func (d *database) insert(t testing.TB, topic string, n int) []int64 {
	t.Helper()
	return insertBy(t, d.app, topic, n)
}

// begin opens a transaction of the application's, which is rolled back if the
// test does not end it.
func (d *database) begin(t testing.TB) pgx.Tx {
	t.Helper()
	tx, err := d.app.Begin(t.Context())
	testkit.NoError(t, err)
	t.Cleanup(func() {
		if err := tx.Rollback(context.Background()); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			t.Error(err)
		}
	})
	return tx
}

func (d *database) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	_, err := d.app.Exec(t.Context(), sql, args...)
	testkit.NoError(t, err)
}

// queryValue returns the one value of a query.
func queryValue[T any](t testing.TB, d *database, sql string, args ...any) (v T) {
	t.Helper()
	testkit.NoError(t, d.app.QueryRow(t.Context(), sql, args...).Scan(&v))
	return v
}

// expectDrained waits until neither events nor batches are left.
func (d *database) expectDrained(t testing.TB) {
	t.Helper()
	testserver.Eventually(t, func() error {
		var left string
		err := d.app.QueryRow(t.Context(), `
			SELECT CASE WHEN EXISTS (SELECT FROM outbox_events) OR EXISTS (SELECT FROM outbox_batches)
			  THEN format('%s events, %s batches are left', (SELECT count(*) FROM outbox_events), (SELECT count(*) FROM outbox_batches))
			  ELSE '' END`).Scan(&left)
		if err == nil && left != "" {
			err = errors.New(left)
		}
		return err
	})
}

// often is a schedule that ticks more often than cron can.
type often time.Duration

func (o often) Next(now time.Time) time.Time { return now.Add(time.Duration(o)) }

// process is a pipeline that runs.
type process struct {
	*pipeline.Pipeline
	cancel context.CancelFunc // the first signal
	halt   context.CancelFunc // the time to stop is over
	ended  chan struct{}
	err    error // what Run returned, once ended
}

// start runs a pipeline with batches of 100 and short intervals and backoffs.
// The end of the test stops it; Run must return nil.
func start(t testing.TB, b buffer.Queue, s sink.Sink, change func(*pipeline.Config)) *process {
	t.Helper()
	c := pipeline.Config{
		Name: "orders", Schedule: often(20 * time.Millisecond), BatchSize: 100,
		Backoff: delivery.Backoff{Initial: 20 * time.Millisecond, Max: 200 * time.Millisecond, Multiplier: 2},
		Log:     logOf(t),
	}
	if change != nil {
		change(&c)
	}
	joined, err := pipeline.New(b, s, c)
	testkit.NoError(t, err)
	p := &process{Pipeline: joined, ended: make(chan struct{})}
	stop, halt := context.WithCancel(context.Background())
	ctx, cancel := context.WithCancel(stop)
	p.cancel, p.halt = cancel, halt
	go func() {
		defer close(p.ended)
		p.err = joined.Run(ctx, stop)
	}()
	t.Cleanup(func() {
		p.stop(t)
		halt()
	})
	return p
}

// stop stops the pipeline as a signal does.
func (p *process) stop(t testing.TB) {
	t.Helper()
	p.cancel()
	if err := p.wait(t); err != nil {
		t.Errorf("Run returned %v", err)
	}
}

// wait waits for Run's end and returns its error.
func (p *process) wait(t testing.TB) error {
	t.Helper()
	select {
	case <-p.ended:
		return p.err
	case <-time.After(testkit.PollTimeout):
		t.Fatal("the pipeline does not stop")
		return nil
	}
}

// expectReady waits until the pipeline says that it is well; expectNotReady, that
// it is not.
func (p *process) expectReady(t testing.TB) {
	t.Helper()
	testserver.Eventually(t, p.Ready)
}

func (p *process) expectNotReady(t testing.TB) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if p.Ready() == nil {
			return errors.New("the pipeline says that it is ready")
		}
		return nil
	})
}

// logOf is a log that is shown when the test fails.
func logOf(t testing.TB) *slog.Logger {
	return logInto(t, &lockedBuffer{})
}

func logInto(t testing.TB, log *lockedBuffer) *slog.Logger {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the relay's log:\n%s", log.tail(6000))
		}
	})
	return slog.New(slog.NewTextHandler(log, nil))
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// count is in how many places of the log a text stands.
func (l *lockedBuffer) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.buf.Bytes(), []byte(text))
}

func (l *lockedBuffer) tail(n int) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Bytes()[max(0, l.buf.Len()-n):]
}

// sendHook calls the test before and after each Send of a sink.
type sendHook struct {
	sink.Sink
	send func(ctx context.Context, b *buffer.Batch, next func() error) error
}

func (g *sendHook) Send(ctx context.Context, b *buffer.Batch) error {
	return g.send(ctx, b, func() error { return g.Sink.Send(ctx, b) })
}

// AddressOf and OneAddress are those of the sink behind.
func (g *sendHook) AddressOf(e *outbox.Event) (string, bool) {
	return destination{Sink: g.Sink}.AddressOf(e)
}
func (g *sendHook) OneAddress() bool { return destination{Sink: g.Sink}.OneAddress() }

// expectOnce fails the test unless every id wanted arrived exactly once, and no
// other id.
func expectOnce(t testing.TB, arrived, wanted []int64) {
	t.Helper()
	times := make(map[int64]int, len(wanted))
	for _, id := range arrived {
		times[id]++
	}
	var missing, twice []int64
	for _, id := range wanted {
		switch times[id] {
		case 0:
			missing = append(missing, id)
		case 1:
		default:
			twice = append(twice, id)
		}
		delete(times, id)
	}
	if len(missing)+len(twice)+len(times) > 0 {
		t.Errorf("of %d events %s are missing, %s came more than once; %d came that were never committed",
			len(wanted), some(missing), some(twice), len(times))
	}
}

func some(ids []int64) string {
	slices.Sort(ids)
	return fmt.Sprintf("%d %v", len(ids), ids[:min(5, len(ids))])
}
