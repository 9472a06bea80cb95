package pipeline_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
	"github.com/outboxrelay/relay/outbox/sqliteoutbox"
	"github.com/outboxrelay/relay/pipeline"
)

// printer is the smallest sink: it accepts every event.
type printer struct{ accepted func() }

func (p printer) Send(_ context.Context, b *buffer.Batch) error {
	for i := range b.Events {
		fmt.Println(b.Events[i].Topic, string(b.Events[i].Payload))
	}
	p.accepted()
	return nil
}
func (printer) Check(context.Context) error { return nil }
func (printer) Close() error                { return nil }

// A pipeline of Go values inside a service: a buffer, a sink and their rules. A relay.yaml is run by package relay instead,
// which also has probes and metrics.
func ExamplePipeline() {
	folder, err := os.MkdirTemp("", "pipeline-example-*")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	file := filepath.Join(folder, "app.db")
	if _, err := sqlite.Migrate(context.Background(), "sqlite://"+file, sqlite.SchemaConfig{}); err != nil {
		log.Fatal(err)
	}
	insertOrder(file)

	// Both are the caller's to close, after Run. Name is the same wherever the pipeline runs: its batches are stored under it.
	const name = "orders"
	buf, err := sqlite.Open(sqlite.Config{URL: "sqlite://" + file, Pipeline: name, Owner: "example"})
	if err != nil {
		log.Fatal(err)
	}
	defer buf.Close()

	// ctx ends claims, and what is in flight is finished; stop cuts that off, a while later.
	ctx, cancel := context.WithCancel(context.Background())
	stop, cancelStop := context.WithCancel(context.Background())
	defer cancelStop()
	p, err := pipeline.New(buf, printer{accepted: cancel}, pipeline.Config{
		Name:      name,
		Poll:      true, // look for events between two runs of the schedule, too
		BatchSize: 100,
		Log:       slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer context.AfterFunc(ctx, func() { time.AfterFunc(30*time.Second, cancelStop) })()
	if err := p.Run(ctx, stop); err != nil {
		log.Fatal(err)
	}
	backlog, err := buf.CountBacklog(context.Background(), 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("left:", backlog.Unclaimed)
	// Output:
	// orders.created {"order": 1}
	// left: 0
}

func insertOrder(file string) {
	ctx := context.Background()
	db, err := sql.Open("sqlite", "file:"+file+"?_txlock=immediate")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := sqliteoutbox.Insert(ctx, tx, outbox.Event{Topic: "orders.created", Payload: []byte(`{"order": 1}`)}); err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}
}
