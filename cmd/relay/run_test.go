package main

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testserver"
)

func TestRunToRedis(t *testing.T) {
	t.Parallel()
	db, url := newDatabase(t), testserver.SharedRedis(t)
	client := connect(t, url)
	db.insert(2500)
	r := start(t, nil, "run", "-c", write(t, onePipeline("orders", db.url, url)))
	testserver.Eventually(t, func() error {
		if n := client.XLen(t.Context(), "orders").Val(); n != 2500 {
			return fmt.Errorf("%d events arrived", n)
		}
		return nil
	})
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	if n := db.count("SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_batches)"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	if r.stdout.String() != "" {
		t.Errorf("stdout is %q", r.stdout.String())
	}
	r.says("pipeline=orders source=postgres://***@127.0.0.1:")
}

func connect(t *testing.T, url string) *redis.Client {
	t.Helper()
	options, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(options)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}
