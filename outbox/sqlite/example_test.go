package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// A claimed batch belongs to its owner until it is settled or its lease is over.
func ExampleBuffer() {
	ctx := context.Background()
	file, clean := exampleFile()
	defer clean()
	buf, err := sqlite.Open(sqlite.Config{URL: "sqlite://" + file, Pipeline: "orders", Owner: "example"})
	if err != nil {
		log.Fatal(err)
	}
	defer buf.Close()

	batch, err := buf.Claim(ctx, 1000, 30*time.Second)
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range batch.Events {
		fmt.Println(e.Topic, string(e.Payload))
	}
	if err := buf.Settle(ctx, batch, []buffer.Outcome{{Verdict: buffer.Delivered}}); err != nil {
		log.Fatal(err)
	}
	backlog, err := buf.CountBacklog(ctx, 1000)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("unclaimed:", backlog.Unclaimed)
	// Output:
	// orders.created {"total": 1}
	// orders.created {"total": 2}
	// unclaimed: 0
}

func exampleDB() (*sql.DB, func()) {
	folder, err := os.MkdirTemp("", "relay-example-*")
	if err != nil {
		log.Fatal(err)
	}
	file := filepath.Join(folder, "app.db")
	if _, err := sqlite.Migrate(context.Background(), "sqlite://"+file, sqlite.SchemaConfig{}); err != nil {
		log.Fatal(err)
	}
	db, err := sql.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := db.Exec("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, total INTEGER)"); err != nil {
		log.Fatal(err)
	}
	return db, func() {
		if err := db.Close(); err != nil {
			log.Fatal(err)
		}
		if err := os.RemoveAll(folder); err != nil {
			log.Fatal(err)
		}
	}
}

func exampleFile() (string, func()) {
	db, clean := exampleDB()
	if _, err := db.Exec(`INSERT INTO outbox_events (topic, payload) VALUES ('orders.created', '{"total": 1}'), ('orders.created', '{"total": 2}')`); err != nil {
		log.Fatal(err)
	}
	var (
		seq        int
		name, file string
	)
	if err := db.QueryRow("PRAGMA database_list").Scan(&seq, &name, &file); err != nil {
		log.Fatal(err)
	}
	return file, clean
}
