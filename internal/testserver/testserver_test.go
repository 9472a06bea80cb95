package testserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case childServers:
		runChild()
	case childPort:
		runPortChild()
	}
	testserver.Main(m)
}

// childEnv makes the test program do one of the following.
const (
	childEnv     = "TESTSERVER_CHILD"
	childServers = "servers" // start servers, print their URLs and wait to be killed
	childPort    = "port"    // print a free port and wait for the end of its input
)

func runPortChild() {
	port, err := testserver.FreePort()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(port)
	_, _ = io.Copy(io.Discard, os.Stdin) // the end of the input ends this process, whatever it is
	os.Exit(0)
}

func runChild() {
	ctx := context.Background()
	pg, errPG := testserver.StartPostgres(ctx, testserver.PostgresOptions{})
	rd, errRD := testserver.StartRedis(ctx)
	if err := errors.Join(errPG, errRD); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(pg.URL)
	fmt.Println(rd.URL)
	select {}
}

// query runs SQL on a connection of its own and returns the first column of the
// last statement's first row as text.
func query(t *testing.T, databaseURL, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	testkit.NoError(t, err)
	defer func() {
		testkit.NoError(t, conn.Close(t.Context()))
	}()
	results, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return string(results[len(results)-1].Rows[0][0])
}

// expectGone fails the test if a server listens at the URL's address.
func expectGone(t *testing.T, serverURL string) {
	t.Helper()
	u, err := url.Parse(serverURL)
	testkit.NoError(t, err)
	conn, err := (&net.Dialer{}).DialContext(context.WithoutCancel(t.Context()), "tcp", u.Host)
	if err == nil {
		t.Errorf("%s still listens: %v", u.Host, conn.Close())
	}
}

// expectEmpty fails the test unless the directory is empty.
func expectEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	testkit.NoError(t, err)
	for _, entry := range left {
		t.Errorf("%s was left behind", entry.Name())
	}
}

// tempDir makes the servers of this test keep their data in a directory of its own, which
// other users may enter.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "testserver-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	testkit.NoError(t, err)
	t.Cleanup(func() {
		testkit.NoError(t, os.RemoveAll(dir))
	})
	t.Setenv("TMPDIR", dir)
	return dir
}

func TestPostgres_NewDatabase(t *testing.T) {
	t.Parallel()
	one, two := testserver.Postgres(t), testserver.Postgres(t)
	if one == two {
		t.Fatal("two tests share a database")
	}
	query(t, one, "CREATE TABLE here (n int); SELECT 'made'")
	testkit.Equal(t, "table in the other database", query(t, two, "SELECT coalesce(to_regclass('here')::text, 'absent')"), "absent")
	testkit.Equal(t, "max_prepared_transactions", query(t, one, "SHOW max_prepared_transactions"), "10")
}

func TestPostgres_DropsDatabases(t *testing.T) {
	t.Parallel()
	mine := testserver.Postgres(t)
	var other string
	t.Run("inner", func(t *testing.T) { other = testserver.Postgres(t) })
	u, err := url.Parse(other)
	testkit.NoError(t, err)
	testkit.Equal(t, "databases of that name", query(t, mine, "SELECT count(*)::text FROM pg_database WHERE datname = '"+u.Path[1:]+"'"), "0")
}

func TestPostgres_DataSurvivesStopAndKill(t *testing.T) {
	dir := tempDir(t)
	s, err := testserver.StartPostgres(t.Context(), testserver.PostgresOptions{
		Durable: true, Settings: map[string]string{"max_connections": "17"},
	})
	testkit.NoError(t, err)
	testkit.Equal(t, "fsync", query(t, s.URL, "SHOW fsync"), "on")
	testkit.Equal(t, "max_connections", query(t, s.URL, "SHOW max_connections"), "17")
	query(t, s.URL, "CREATE TABLE kept AS SELECT 1; SELECT 'made'")
	for name, end := range map[string]func() error{"stop": s.Stop, "kill": s.Kill} {
		testkit.NoError(t, end())
		expectGone(t, s.URL)
		if err := s.Start(t.Context()); err != nil {
			t.Fatalf("after %s: %v", name, err)
		}
		testkit.Equal(t, "rows after "+name, query(t, s.URL, "SELECT count(*)::text FROM kept"), "1")
	}
	if err := s.Start(t.Context()); err == nil {
		t.Error("a running server was started")
	}
	testkit.NoError(t, s.Close())
	expectGone(t, s.URL)
	expectEmpty(t, dir)
}

func TestPostgres_FailedStart(t *testing.T) {
	dir := tempDir(t)
	_, err := testserver.StartPostgres(t.Context(), testserver.PostgresOptions{
		Settings: map[string]string{"no_such_setting": "1"},
	})
	if err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("got %v; want the reason from the log", err)
	}
	expectEmpty(t, dir)
}

func TestProgram_NotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := testserver.Program("no-such-server")
	if err == nil || !strings.Contains(err.Error(), "make servers") {
		t.Errorf("got %v; want an error that names make servers", err)
	}
	if _, err := testserver.Program("pgbouncer"); err != nil {
		t.Errorf("not found outside PATH: %v", err)
	}
}

// Two processes that had a port of the same block would start servers on the same port in the end.
func TestFreePort_OfOneProcess(t *testing.T) {
	t.Parallel()
	const children = 20
	blocks := map[int]bool{}
	own, err := testserver.FreePort()
	testkit.NoError(t, err)
	blocks[own/testserver.PortBlock] = true
	for range children {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+childPort)
		in, err := cmd.StdinPipe()
		testkit.NoError(t, err)
		out, err := cmd.StdoutPipe()
		testkit.NoError(t, err)
		testkit.NoError(t, cmd.Start())
		t.Cleanup(func() { testkit.NoError(t, errors.Join(in.Close(), cmd.Wait())) })
		var port int
		if _, err := fmt.Fscan(out, &port); err != nil {
			t.Fatalf("the child printed no port: %v", err)
		}
		if blocks[port/testserver.PortBlock] {
			t.Errorf("port %d is of another process", port)
		}
		blocks[port/testserver.PortBlock] = true
	}
	for range 2 * testserver.PortBlock {
		port, err := testserver.FreePort()
		testkit.NoError(t, err)
		testkit.Equal(t, "block of another port", port/testserver.PortBlock, own/testserver.PortBlock)
	}
}

func TestPgBouncer_PoolsTransactions(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	pooled := testserver.PgBouncer(t, direct)
	if direct == pooled {
		t.Fatal("the pooler has the server's URL")
	}
	testkit.Equal(t, "database", query(t, pooled, "SELECT current_database()"), query(t, direct, "SELECT current_database()"))

	// In transaction mode another client gets the session with its settings.
	query(t, pooled, "SELECT set_config('application_name', 'other client', false)")
	testkit.Equal(t, "application_name", query(t, pooled, "SELECT current_setting('application_name')"), "other client")
}

func TestRedis_DataSurvivesStopAndKill(t *testing.T) {
	dir := tempDir(t)
	s, err := testserver.StartRedis(t.Context(), "--maxmemory", "123456789")
	testkit.NoError(t, err)
	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	defer closeClient(t, c)
	testkit.Equal(t, "maxmemory", c.ConfigGet(t.Context(), "maxmemory").Val()["maxmemory"], "123456789")
	testkit.NoError(t, c.Set(t.Context(), "kept", "yes", 0).Err())
	for name, end := range map[string]func() error{"stop": s.Stop, "kill": s.Kill} {
		testkit.NoError(t, end())
		expectGone(t, s.URL)
		if err := s.Start(t.Context()); err != nil {
			t.Fatalf("after %s: %v", name, err)
		}
		testkit.Equal(t, "key after "+name, c.Get(t.Context(), "kept").Val(), "yes")
	}
	testkit.NoError(t, s.Close())
	expectGone(t, s.URL)
	expectEmpty(t, dir)
}

func TestSharedRedis_EmptyDatabases(t *testing.T) {
	t.Parallel()
	set := func(t *testing.T, databaseURL string) {
		t.Helper()
		opts, err := redis.ParseURL(databaseURL)
		testkit.NoError(t, err)
		c := redis.NewClient(opts)
		defer closeClient(t, c)
		set, err := c.SetNX(t.Context(), "mine", "1", 0).Result()
		if err != nil || !set {
			t.Errorf("the database was not empty: %v %v", set, err)
		}
	}
	set(t, testserver.SharedRedis(t))
	for range 3 {
		t.Run("inner", func(t *testing.T) { set(t, testserver.SharedRedis(t)) })
	}
}

func TestRedisCluster_ServesAllSlots(t *testing.T) {
	t.Parallel()
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: testserver.RedisCluster(t)})
	defer closeClient(t, c)
	for i := range 100 {
		testkit.NoError(t, c.Set(t.Context(), fmt.Sprint("key", i), i, 0).Err())
	}
}

func TestRedisSentinel_Failover(t *testing.T) {
	t.Parallel()
	s := testserver.RedisSentinel(t)
	c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: s.MasterName, SentinelAddrs: s.Addrs})
	defer closeClient(t, c)
	testkit.NoError(t, c.Set(t.Context(), "kept", "yes", 0).Err())
	if n, err := c.Wait(t.Context(), 1, 0).Result(); err != nil || n != 1 {
		t.Fatalf("%d replicas acknowledged: %v", n, err)
	}
	testkit.NoError(t, s.Master.Kill())
	testkit.Eventually(t, func() error { return c.Set(t.Context(), "new", "yes", 0).Err() })
	testkit.Equal(t, "key after the failover", c.Get(t.Context(), "kept").Val(), "yes")
}

func TestNATS_StreamsSurviveStop(t *testing.T) {
	t.Parallel()
	s := testserver.NATS(t)
	stream := func() (jetstream.Stream, error) {
		nc, err := nats.Connect(s.URL)
		if err != nil {
			return nil, err
		}
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc)
		if err != nil {
			return nil, err
		}
		st, err := js.Stream(t.Context(), "KEPT")
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			st, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "KEPT", Subjects: []string{"kept.>"}})
		}
		if err == nil {
			_, err = js.Publish(t.Context(), "kept.1", nil)
		}
		return st, err
	}
	if _, err := stream(); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	expectGone(t, s.URL)
	testkit.NoError(t, s.Start())
	st, err := stream()
	testkit.NoError(t, err)
	info, err := st.Info(t.Context())
	if err != nil || info.State.Msgs != 2 {
		t.Errorf("got %+v, %v; want 2 messages", info, err)
	}
}

func TestCoreNATS_NoJetStream(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		url string
		has bool
	}{
		"core":   {testserver.CoreNATS(t).URL, false},
		"shared": {testserver.SharedNATS(t), true},
	} {
		nc, err := nats.Connect(want.url)
		testkit.NoError(t, err)
		js, err := jetstream.New(nc)
		testkit.NoError(t, err)
		_, err = js.AccountInfo(t.Context())
		if has := err == nil; has != want.has {
			t.Errorf("%s: JetStream %v (%v)", name, has, err)
		}
		nc.Close()
	}
}

func closeClient(t *testing.T, c interface{ Close() error }) {
	t.Helper()
	testkit.NoError(t, c.Close())
}
