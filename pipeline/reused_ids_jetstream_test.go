package pipeline_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// A database hands out ids that events in the stream have already, within the stream's duplicate window. All new
// events arrive, each once.
func TestReusedIDs_JetStream(t *testing.T) {
	t.Parallel()
	for _, fast := range []bool{false, true} {
		t.Run(fmt.Sprintf("AsynchronousFailover/fast=%v", fast), func(t *testing.T) {
			t.Parallel()
			to := newReusedStream(t, fast)
			primary := testserver.OwnPostgres(t, testserver.PostgresOptions{Durable: true})
			standby := testserver.Standby(t, primary)
			u := both(t, primary, standby)
			d, follower := databaseAt(t, u), connectTo(t, standby.URL)
			p := start(t, bufferAt(t, u, "relay"), to, nil)
			kept := d.insert(t, "kept", 100)
			d.expectDrained(t)
			d.exec(t, "ALTER SYSTEM RESET synchronous_standby_names")
			d.exec(t, "SELECT pg_reload_conf()")
			stopReplication(t, d, follower)

			lost := d.insert(t, "lost", 500)
			d.expectDrained(t)
			testkit.NoError(t, primary.Kill())
			p.expectNotReady(t)
			testkit.NoError(t, standby.Promote(t.Context()))
			d.app.Reset()
			renewed := d.insert(t, "renewed", 300)
			if renewed[0] > lost[len(lost)-1] {
				t.Fatalf("the first id after the failover is %d, which is new", renewed[0])
			}
			d.expectDrained(t)
			expectOnce(t, to.arrived(t, "kept"), kept)
			expectOnce(t, to.arrived(t, "lost"), lost)
			expectOnce(t, to.arrived(t, "renewed"), renewed)
		})
		t.Run(fmt.Sprintf("TruncateRestartIdentity/fast=%v", fast), func(t *testing.T) {
			t.Parallel()
			to := newReusedStream(t, fast)
			d := newDatabase(t)
			start(t, d.buffer(t, "relay"), to, nil)
			lost := d.insert(t, "lost", 500)
			d.expectDrained(t)
			d.exec(t, "TRUNCATE outbox_events RESTART IDENTITY")
			renewed := d.insert(t, "renewed", 300)
			testkit.Equal(t, "the first id after TRUNCATE", renewed[0], 1)
			d.expectDrained(t)
			expectOnce(t, to.arrived(t, "lost"), lost)
			expectOnce(t, to.arrived(t, "renewed"), renewed)
		})
	}
}

// newReusedStream is a sink to one stream for all topics.
func newReusedStream(t testing.TB, fast bool) destination {
	t.Helper()
	url := testserver.NATS(t).URL
	to := natsAt(t, url)
	stream, err := jetStream(t, url).CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "EVENTS", Subjects: []string{"*"}, AllowBatchPublish: fast,
	})
	testkit.NoError(t, err)
	to.count = nil
	to.arrived = func(t testing.TB, topic string) (ids []int64) {
		t.Helper()
		consumer, err := stream.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{FilterSubjects: []string{topic}})
		testkit.NoError(t, err)
		messages, err := consumer.FetchNoWait(1 << 20)
		testkit.NoError(t, err)
		for m := range messages.Messages() {
			ids = append(ids, idOf(t, m))
		}
		testkit.NoError(t, messages.Error())
		return ids
	}
	return to
}

func connectTo(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	testkit.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

// stopReplication returns when the standby has everything and receives nothing more.
func stopReplication(t *testing.T, d *database, standby *pgx.Conn) {
	t.Helper()
	position := queryValue[string](t, d, "SELECT pg_current_wal_lsn()::text")
	wait := func(sql string, args ...any) {
		t.Helper()
		testserver.Eventually(t, func() error {
			var done bool
			err := standby.QueryRow(t.Context(), sql, args...).Scan(&done)
			if err == nil && !done {
				err = errors.New("not yet: " + sql)
			}
			return err
		})
	}
	wait("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", position)
	for _, sql := range []string{"ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"} {
		_, err := standby.Exec(t.Context(), sql)
		testkit.NoError(t, err)
	}
	wait("SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")
}
