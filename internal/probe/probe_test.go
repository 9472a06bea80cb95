package probe

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/sqlite"
	"github.com/outboxrelay/relay/sink/redissink"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// What is said of the probes after Ctrl-C holds: none, all or some were deleted.
func TestCleanUp(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/app.db"
	if _, err := sqlite.Migrate(t.Context(), "sqlite://"+path, sqlite.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	app, err := newApplication(&config.Source{Driver: "sqlite", Path: path, Table: "outbox_events"})
	if err != nil {
		t.Fatal(err)
	}
	defer app.db.Close()
	relay, err := sqlite.Open(sqlite.Config{URL: "sqlite://" + path, Pipeline: "orders", Owner: "relay"})
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	for _, c := range []struct {
		commit, claim int
		want          string
	}{
		{0, 0, "interrupted before a probe was committed"},
		{3, 0, "interrupted: deleted all probes (3); no relay had claimed any"},
		{3, 2, "interrupted: deleted the unclaimed ones (1) of 3 probes; a relay has claimed the others (2)"},
	} {
		var ids []int64
		if c.commit > 0 {
			if ids, err = app.commit(t.Context(), "t", "run", 1, c.commit); err != nil {
				t.Fatal(err)
			}
		}
		if c.claim > 0 {
			if _, err := relay.Claim(t.Context(), c.claim, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		if err := cleanUp(t.Context(), app, ids); !errors.Is(err, ErrInterrupted) || err.Error() != c.want {
			t.Errorf("the error is %q, want %q", err, c.want)
		}
	}
}

// Missing and duplicate probes are listed by id.
func TestResult_CountArrivals(t *testing.T) {
	t.Parallel()
	url := testserver.SharedRedis(t)
	options, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	add := func(id string) {
		t.Helper()
		if err := client.XAdd(t.Context(), &redis.XAddArgs{Stream: "s", Values: []string{"id", id}}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	add("3") // before the reader
	s, err := redissink.New(redissink.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	from, err := newStreamReader(t.Context(), s, "s")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"1", "2", "2", "77"} {
		add(id)
	}
	for i := range 1500 { // more than a page
		add(fmt.Sprint(1000 + i))
	}
	add("4")
	r := Result{Events: 4, Delivered: 4, IDs: []int64{1, 2, 3, 4}}
	if err := r.countArrivals(t.Context(), from); err != nil {
		t.Fatal(err)
	}
	if r.OK() || !slices.Equal(r.Missing, []int64{3}) || !slices.Equal(r.Duplicates, []int64{2}) || r.Sink != "Redis stream s" {
		t.Errorf("the result is %+v", r)
	}
}
