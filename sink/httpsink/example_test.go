package httpsink_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink/httpsink"
)

func ExampleNew() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Println(r.Method, r.URL, r.Header.Get("Idempotency-Key"))
		fmt.Println(string(body))
	}))
	defer server.Close()

	s, err := httpsink.New(httpsink.Config{
		URL:     server.URL + "/events/{topic}",
		Headers: map[string]string{"Authorization": "Bearer abcd"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = s.Send(context.Background(), &buffer.Batch{
		GroupID: uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057"), Pipeline: "orders", PayloadIsJSON: true,
		Events: []outbox.Event{{
			ID: 17, Topic: "orders.created", Payload: []byte(`{"order": 1}`),
			CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 123456000, time.UTC),
		}},
	})
	if err != nil {
		fmt.Println(err)
	}
	if err := s.Close(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// POST /events/orders.created 01890a5d-ac96-774b-bcce-b302099a8057
	// {"pipeline":"orders","group_id":"01890a5d-ac96-774b-bcce-b302099a8057","events":[{"id":"17","topic":"orders.created","payload":{"order": 1},"created_at":"2026-01-02T03:04:05.123456Z"}]}
}
