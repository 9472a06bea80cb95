package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// TestRun places an order and waits until its event has arrived.
func TestRun(t *testing.T) {
	database, file := testserver.Postgres(t), filepath.Join(t.TempDir(), "events.ndjson")
	t.Setenv("DATABASE_URL", database)
	t.Setenv("RELAY_SINK_URL", "file://"+file)
	shop, err := os.ReadFile("../shop.sql")
	testkit.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), database)
	testkit.NoError(t, err)
	_, err = conn.Exec(t.Context(), string(shop))
	testkit.NoError(t, err)
	testkit.NoError(t, conn.Close(t.Context()))
	port, err := testserver.FreePort()
	testkit.NoError(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", port)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, address) }()
	get := func(path string) string {
		response, err := http.Get("http://" + address + path)
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		testkit.NoError(t, err)
		return response.Status + " " + string(body)
	}
	contains := func(path, text string) {
		t.Helper()
		testkit.Eventually(t, func() error {
			if got := get(path); !strings.Contains(got, text) {
				return fmt.Errorf("GET %s: %s", path, got)
			}
			return nil
		})
	}
	contains("/relay/readyz", `"ready": true`)
	response, err := http.PostForm("http://"+address+"/orders", url.Values{"customer": {"customer-7"}})
	testkit.NoError(t, err)
	testkit.NoError(t, response.Body.Close())
	testkit.Equal(t, "status", response.StatusCode, http.StatusCreated)
	contains("/relay/metrics", `relay_events_delivered_total{pipeline="orders"} 1`)
	contains("/relay/api/status", `"name": "orders"`)
	cancel()
	testkit.NoError(t, testkit.Receive(t, "the end of run", ended))
	text, err := os.ReadFile(file)
	testkit.NoError(t, err)
	if !strings.Contains(string(text), `"topic":"orders.created","key":"customer-7","payload":{"order": 1}`) {
		t.Errorf("the file has %s", text)
	}
	http.DefaultClient.CloseIdleConnections()
}
