package probe

import (
	"fmt"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/sink/redissink"
)

func TestMain(m *testing.M) { testserver.Main(m) }

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
