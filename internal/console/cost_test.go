package console_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/access"
	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/audit"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/console"
	"github.com/outboxrelay/relay/internal/engine"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// unrun is a pipeline that nobody runs, so that all statements in its database are the console's.
type unrun struct {
	buffer.Buffer
	reads atomic.Int64
	// onRead is called before the nth read of the status, from 1.
	onRead func(n int64)
}

func (u *unrun) Ready() error                        { return nil }
func (u *unrun) Limits() (batchSize, workers int)    { return 1, 1 }
func (u *unrun) Worst() (buffer.VacuumBlocker, bool) { return buffer.VacuumBlocker{}, false }

func (u *unrun) Status(ctx context.Context) (buffer.Status, error) {
	u.onRead(u.reads.Add(1))
	return u.Buffer.Status(ctx)
}

// openUnrun serves a console of a pipeline, with several sinks or one, whose database has events and dead letters, to so many browsers that show the overview.
func openUnrun(t testing.TB, database string, sinks, browsers int, onRead func(n int64)) {
	t.Helper()
	text := fmt.Sprintf("pipelines:\n  - name: orders\n    source: {url: %q}\n", database)
	if sinks == 1 {
		text += "    sink: {url: \"stdout:\"}\n"
	} else {
		text += "    sinks:\n"
		for i := range sinks {
			text += fmt.Sprintf("      - {name: sink%d, url: \"file://%s/%d.ndjson\"}\n", i, t.TempDir(), i)
		}
	}
	c, err := config.Parse("relay.yaml", []byte(text), func(string) (string, bool) { return "", false })
	testkit.NoError(t, err)
	p := &c.Pipelines[0]
	_, err = p.Migrate(t.Context())
	testkit.NoError(t, err)
	b, err := p.OpenBuffer("host/1/orders")
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })

	u := &unrun{Buffer: b, onRead: onRead}
	observed := admin.Pipeline{Name: p.Name, Health: u, MaxWaiting: p.MaxWaiting, Batches: b, DeadLetters: engine.DeadLetters(p, b)}
	if sinks > 1 {
		observed.Router = u
		for _, name := range p.SinkNames() {
			observed.Sinks = append(observed.Sinks, admin.Sink{Name: name, Health: u})
		}
	}
	log := slog.New(slog.DiscardHandler)
	guard := access.New()
	source := admin.New([]admin.Pipeline{observed}, admin.NewMetrics("test"), admin.Config{Guard: guard, Log: log})
	s := console.New(console.Config{Source: source, Guard: guard, Process: "host/1", Audit: audit.New(log), Log: log})
	s.Use()
	server := httptest.NewServer(s)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	closed := make(chan error, browsers)
	for range browsers {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/live", http.NoBody)
		testkit.NoError(t, err)
		response, err := http.DefaultClient.Do(request) //nolint:bodyclose // the goroutine closes it
		testkit.NoError(t, err)
		go func() {
			_, _ = io.Copy(io.Discard, response.Body) // until the end of the test
			closed <- response.Body.Close()
		}()
	}
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		testkit.NoError(t, <-ended)
		for range browsers {
			testkit.NoError(t, <-closed)
		}
		server.Close()
	})
}

// TestLive_Statements: an update of the overview costs the database two queries, and at times a third while events die, however many sinks there are and browsers
// show it. The statements that begin, set up and end their transactions are not counted.
func TestLive_Statements(t *testing.T) {
	t.Parallel()
	const most = 2
	for _, sinks := range []int{1, 3, 8} {
		t.Run(fmt.Sprint(sinks, " sinks"), func(t *testing.T) {
			t.Parallel()
			server := testserver.OwnPostgres(t, testserver.PostgresOptions{Settings: map[string]string{"shared_preload_libraries": "pg_stat_statements"}})
			db, err := pgx.Connect(t.Context(), server.URL)
			testkit.NoError(t, err)
			t.Cleanup(func() { testkit.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
			exec := func(sql string) {
				t.Helper()
				if _, err := db.Exec(t.Context(), sql); err != nil {
					t.Error(err)
				}
			}
			exec("CREATE EXTENSION pg_stat_statements")

			const warm, updates = 3, 4 // the first ones connect
			result := make(chan string, 1)
			counted := func() string {
				var all, deadCauses int64
				var text string
				if err := db.QueryRow(t.Context(), `SELECT coalesce(sum(calls), 0)::bigint, coalesce(sum(calls) FILTER (WHERE query LIKE 'SELECT d.event_id, left(d.topic%'), 0)::bigint,
					coalesce(string_agg(calls || ' x ' || query, E'\n'), '') FROM pg_stat_statements
					WHERE query NOT LIKE '%pg_stat_statements%' AND query NOT LIKE 'INSERT INTO outbox_dead_letters%'
						AND query NOT LIKE 'BEGIN%' AND query <> 'COMMIT' AND query NOT LIKE 'SELECT pg_catalog.set_config(%'`).Scan(&all, &deadCauses, &text); err != nil {
					return err.Error()
				}
				if all == 0 || all-deadCauses > most*updates || deadCauses > updates {
					return fmt.Sprintf("%d updates make %d statements, %d of them for the causes of dead letters:\n%s", updates, all, deadCauses, text)
				}
				t.Logf("%d updates make %d statements, %d of them for the causes of dead letters", updates, all, deadCauses)
				return ""
			}
			openUnrun(t, server.URL, sinks, 5, func(n int64) {
				switch n {
				case warm:
					exec("SELECT pg_stat_statements_reset()")
				case warm + updates:
					result <- counted()
				}
				if n < warm+updates {
					exec(`INSERT INTO outbox_dead_letters (pipeline, event_id, topic, payload, created_at, group_id, attempts, error, died_at)
						SELECT 'orders', (SELECT count(*) FROM outbox_dead_letters) + 1, 'bad', '1', now(), gen_random_uuid(), 1, 'no such tenant', now()`)
				}
			})
			if wrong := testkit.Receive(t, "the statements", result); wrong != "" {
				t.Error(wrong)
			}
		})
	}
}
