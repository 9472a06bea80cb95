package redissink_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink/redissink"
)

func ExampleNew() {
	if err := sendTwice(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 1 entry in orders.created: id 17, key customer-7, payload {"order": 1}
}

func sendTwice(ctx context.Context) (err error) {
	server, err := testserver.StartRedis(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()

	s, err := redissink.New(redissink.Config{URL: server.URL})
	if err != nil {
		return err
	}
	key := "customer-7"
	batch := &buffer.Batch{
		GroupID: buffer.NewGroupID(), Pipeline: "orders", PayloadIsJSON: true,
		Events: []outbox.Event{{ID: 17, Topic: "orders.created", Key: &key, Payload: []byte(`{"order": 1}`)}},
	}
	// The second time, as after a crash, adds nothing.
	if err := errors.Join(s.Send(ctx, batch), s.Send(ctx, batch), s.Close()); err != nil {
		return err
	}

	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	entries, err := client.XRange(ctx, "orders.created", "-", "+").Result()
	if err != nil {
		return errors.Join(err, client.Close())
	}
	e := entries[0].Values
	fmt.Printf("%d entry in orders.created: id %v, key %v, payload %v\n", len(entries), e["id"], e["key"], e["payload"])
	return client.Close()
}
