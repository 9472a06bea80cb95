package natssink_test

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink/natssink"
)

func ExampleNew() {
	if err := publishOne(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// orders.created orders:17:hegozygv1x:01980c4e-8f70-7000-8000-000000000001 customer-7 {"order": 1}
}

func publishOne() error {
	server, err := testserver.StartNATS("")
	if err != nil {
		return err
	}
	defer server.Stop()
	client, err := nats.Connect(server.URL)
	if err != nil {
		return err
	}
	defer client.Close()
	received, err := client.SubscribeSync("orders.>")
	if err != nil {
		return err
	}
	if err := client.Flush(); err != nil {
		return err
	}

	s, err := natssink.New(natssink.Config{URL: server.URL, Core: true})
	if err != nil {
		return err
	}
	key := "customer-7"
	err = s.Send(context.Background(), &buffer.Batch{
		GroupID: uuid.MustParse("01980c4e-8f70-7000-8000-000000000001"), Pipeline: "orders", PayloadIsJSON: true,
		Events: []outbox.Event{{
			ID: 17, Topic: "orders.created", Key: &key, Payload: []byte(`{"order": 1}`),
			CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 678_901_000, time.UTC),
		}},
	})
	if err != nil {
		return err
	}
	got, err := received.NextMsg(10 * time.Second)
	if err != nil {
		return err
	}
	fmt.Println(got.Subject, got.Header.Get("Nats-Msg-Id"), got.Header.Get("Relay-Key"), string(got.Data))
	return s.Close()
}
