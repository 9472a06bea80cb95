package config

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	_ "modernc.org/sqlite"
)

// order: key reaches the buffer and the pipeline.
func TestOpen_PassesOrder(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "app.db")
	for order, claimed := range map[string]int{"none": 2, "key": 1} {
		text := fmt.Sprintf("pipelines: [{name: a, source: {url: 'sqlite://%s', table: %s_events}, order: %s, sink: {url: 'stdout:'}}]", file, order, order)
		c, err := Parse("relay.yaml", []byte(text), lookup)
		if err != nil {
			t.Fatal(err)
		}
		p := &c.Pipelines[0]
		if got := p.pipelineConfig(Process{}).Ordered; got != (order == "key") {
			t.Errorf("order %s: the pipeline keeps order: %t", order, got)
		}
		if _, err := p.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		db, err := sql.Open("sqlite", file)
		if err != nil {
			t.Fatal(err)
		}
		_, err = db.ExecContext(t.Context(), "INSERT INTO "+order+"_events (topic, key, payload) VALUES ('t', 'k', '1'), ('t', 'k', '2')")
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		b, err := p.OpenBuffer("test")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for range 2 {
			batch, err := b.Claim(t.Context(), 1, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if batch != nil {
				n++
			}
		}
		if n != claimed {
			t.Errorf("order %s: %d batches of one key live, want %d", order, n, claimed)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
