package httpsink_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// TestAnswers_BoundedMemory has answers that are small on the wire, or whose values take far more memory than their
// text. All workers read one at the same time. The relay has their text only, and stays within 384 MiB.
func TestAnswers_BoundedMemory(t *testing.T) {
	const (
		size    = 16<<20 - 2
		workers = 8
		bound   = 384 << 20
	)
	fill := func(part string) []byte {
		text := "[" + strings.Repeat(part, size/len(part)-1)
		return []byte(strings.TrimSuffix(text, ",") + "]")
	}
	answers := map[string][]byte{
		"Objects": fill("{},"), "Numbers": fill("1,"), "Nested": []byte(strings.Repeat(`[`, size)), "Keys": fill(`{"k":1},`),
		"ManyKeys": []byte("[" + strings.Repeat(`{"k":1},`, 262_000) + "1]"), "Bomb": bytes.Repeat([]byte(" "), 1<<30),
	}
	passes := map[string]bool{"ManyKeys": true, "Nested": true} // what is nested too deep is text
	for name, text := range answers {
		var compressed bytes.Buffer
		w, err := gzip.NewWriterLevel(&compressed, gzip.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		answers[name] = compressed.Bytes()
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Encoding", "gzip")
				_, _ = w.Write(answer) // the client hangs up
			})
			s := open(t, httpsink.Config{URL: url, Results: `[.body[]? | select(. == "no")]`})
			peak := testkit.HeapGrowth(t)
			failed := make(chan error, workers)
			for range workers {
				go func() { failed <- s.Send(testContext(t), batch("t")) }()
			}
			for range workers {
				if err := <-failed; passes[name] != (err == nil) || err != nil && !errors.Is(err, sink.ErrUnavailable) {
					t.Errorf("got %v", err)
				}
			}
			if grown := peak(); grown > bound {
				t.Errorf("%d KB on the wire took %d MiB; want at most %d", len(answer)>>10, grown>>20, bound>>20)
			} else {
				t.Logf("%d KB on the wire took %d MiB", len(answer)>>10, grown>>20)
			}
		})
	}
}

// TestAnswers_SlowLoris has a server that sends a byte now and then, in the head of its answer or in the body. The
// timeout holds for the answer as a whole.
func TestAnswers_SlowLoris(t *testing.T) {
	t.Parallel()
	for name, head := range map[string]string{
		"Head": "HTTP/1.1 200 OK\r\nX-Slow: ",
		"Body": "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n[",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent atomic.Int64
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				ticker := time.NewTicker(10 * time.Millisecond)
				defer ticker.Stop()
				for _, err := io.WriteString(conn, head); err == nil; _, err = conn.Write([]byte(" ")) {
					sent.Add(1)
					<-ticker.C
				}
			})
			s := open(t, httpsink.Config{URL: url, Timeout: 300 * time.Millisecond, Results: "[]"})
			err := s.Send(testContext(t), batch("t")) // testContext ends long after the timeout
			if !errors.Is(err, sink.ErrUnavailable) || testContext(t).Err() != nil {
				t.Errorf("got %v; want an outage", err)
			}
			if sent.Load() < 2 {
				t.Errorf("the server sent %d bytes only", sent.Load())
			}
		})
	}
}
