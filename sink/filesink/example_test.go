package filesink_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink/filesink"
)

func ExampleNew() {
	s, err := filesink.New(filesink.Config{URL: "stdout:"}, os.Stdout)
	if err != nil {
		fmt.Println(err)
		return
	}
	key := "customer-7"
	err = s.Send(context.Background(), &buffer.Batch{
		GroupID: buffer.NewGroupID(), Pipeline: "orders", PayloadIsJSON: true,
		Events: []outbox.Event{{
			ID: 17, Topic: "orders.created", Key: &key, Payload: []byte(`{"order": 1}`),
			CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 123456000, time.UTC),
		}},
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// {"id":"17","topic":"orders.created","key":"customer-7","payload":{"order": 1},"created_at":"2026-01-02T03:04:05.123456Z"}
}
