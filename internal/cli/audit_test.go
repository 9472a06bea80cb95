package cli

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// TestRun_HundredThousandEvents sends a hundred thousand events through each sink and
// checks by id that each arrives once.
func TestRun_HundredThousandEvents(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) destination{
		"redis stream": redisStream, "redis list": redisList, "jetstream": jetStream, "http": httpReceiver, "file": ndjsonFile,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to, db := open(t), newDatabase(t)
			db.insert(100_000)
			finish(t, db, to, write(t, to.configuration(db)), 100_000)
		})
	}
}

func redisList(t *testing.T) destination {
	server := testserver.SharedRedis(t)
	client := connect(t, server)
	return destination{
		url:  server,
		mode: "list",
		ids: func(t *testing.T) (ids []int64) {
			lines, err := client.LRange(t.Context(), "orders", 0, -1).Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range lines {
				ids = append(ids, envelopeID(t, []byte(line)))
			}
			return ids
		},
	}
}

// httpReceiver is a bulk API that accepts every batch and records the ids.
func httpReceiver(t *testing.T) destination {
	var (
		mu       sync.Mutex
		received []int64
	)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Events []struct {
				ID int64 `json:"id,string"`
			} `json:"events"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, e := range body.Events {
			received = append(received, e.ID)
		}
	}))
	t.Cleanup(server.Close)
	return destination{
		url: server.URL,
		ids: func(*testing.T) []int64 {
			mu.Lock()
			defer mu.Unlock()
			return received
		},
	}
}

func ndjsonFile(t *testing.T) destination {
	path := filepath.Join(t.TempDir(), "events.ndjson")
	return destination{
		url: "file://" + path,
		ids: func(t *testing.T) (ids []int64) {
			file, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			lines := bufio.NewScanner(file)
			for lines.Scan() {
				ids = append(ids, envelopeID(t, lines.Bytes()))
			}
			if err := lines.Err(); err != nil {
				t.Fatal(err)
			}
			return ids
		},
	}
}

func envelopeID(t *testing.T, line []byte) int64 {
	t.Helper()
	var e struct {
		ID int64 `json:"id,string"`
	}
	if err := json.Unmarshal(line, &e); err != nil {
		t.Fatal(err)
	}
	return e.ID
}

// configuration is one pipeline from the database to the destination.
func (d destination) configuration(db *database, more ...string) string {
	text := onePipeline("orders", db.url, d.url, more...)
	if d.mode != "" {
		text = strings.Replace(text, d.url+"\"", d.url+"\", mode: "+d.mode, 1)
	}
	return text
}
