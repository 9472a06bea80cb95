package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	_ "modernc.org/sqlite"

	"github.com/outboxrelay/relay"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/sqliteoutbox"
)

// A program that inserts an event and moves it itself. Run ends with its context, and has finished what it began.
func ExampleOpen() {
	folder, err := os.MkdirTemp("", "relay-example-*")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	file := filepath.Join(folder, "app.db")

	arrived := &firstLine{done: make(chan struct{})}
	r, err := relay.Open("relay.yaml", relay.Options{
		Text: []byte(`
pipelines:
  - name: orders
    source: {url: "sqlite://` + file + `"}
    sink: {url: "stdout:"}
`),
		Stdout: arrived,
		Log:    slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if _, err := r.Migrate(ctx); err != nil {
		log.Fatal(err)
	}
	insert(ctx, file, `{"order": 1}`)

	go func() {
		<-arrived.done
		stop()
	}()
	if err := r.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("arrived:", arrived.payload)
	// Output: arrived: {"order": 1}
}

// insert commits one event.
func insert(ctx context.Context, file, payload string) {
	db, err := sql.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	if err := sqliteoutbox.Insert(ctx, tx, outbox.Event{Topic: "orders.created", Payload: []byte(payload)}); err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}
}

// firstLine keeps the payload of the first event that the sink "stdout:" writes.
type firstLine struct {
	done    chan struct{}
	payload string
}

var _ io.Writer = (*firstLine)(nil)

func (f *firstLine) Write(line []byte) (int, error) {
	if f.payload == "" {
		_, payload, _ := strings.Cut(string(line), `"payload":`)
		f.payload, _, _ = strings.Cut(payload, `,"created_at"`)
		close(f.done)
	}
	return len(line), nil
}
