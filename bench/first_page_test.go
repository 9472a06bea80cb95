package bench

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
)

// BenchmarkFirstPage starts the command with 200 pipelines on SQLite files, and loads the console's overview again and again from its first answer on. It reports
// how long the first page and the slowest one took, and their size.
func BenchmarkFirstPage(b *testing.B) {
	relay := build(b, nil)
	path, address := configureFiles(b, 200)
	relay.migrateAll(b, path)
	var first, slowest time.Duration
	size := 0
	for b.Loop() {
		_, stop := relay.start(b, path)
		pages := 0
		for began := time.Now(); pages == 0 || time.Since(began) < scaledTime(5*time.Second); pause(b, 20*time.Millisecond) {
			asked := time.Now()
			page, ok := load(b, "http://"+address+"/")
			if !ok { // it does not listen yet
				continue
			}
			took := time.Since(asked)
			if pages++; pages == 1 {
				first = max(first, took)
			}
			slowest, size = max(slowest, took), max(size, len(page))
		}
		stop()
	}
	b.ReportMetric(float64(first.Milliseconds()), "first-ms")
	b.ReportMetric(float64(slowest.Milliseconds()), "slowest-ms")
	b.ReportMetric(float64(size)/1000, "kB")
	b.ReportMetric(0, "ns/op")
}

// configureFiles returns the configuration of n pipelines with a file each, and the address of its console.
func configureFiles(b *testing.B, n int) (path, address string) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(b, err)
	address = l.Addr().String()
	testkit.NoError(b, l.Close())
	dir := b.TempDir()
	var yaml strings.Builder
	fmt.Fprintf(&yaml, "admin: {listen: %q}\nlog: {level: error}\npipelines:\n", address)
	for i := range n {
		fmt.Fprintf(&yaml, "- {name: p%[1]d, source: {url: \"sqlite://%[2]s/p%[1]d.db\"}, sink: {url: \"file://%[2]s/p%[1]d.ndjson\"}}\n", i, dir)
	}
	path = filepath.Join(dir, "relay.yaml")
	testkit.NoError(b, os.WriteFile(path, []byte(yaml.String()), 0o600))
	return path, address
}

// load returns a page; ok is false if nothing listens.
func load(b *testing.B, url string) (page []byte, ok bool) {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, nil)
	testkit.NoError(b, err)
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return nil, false
	}
	defer response.Body.Close()
	page, err = io.ReadAll(response.Body)
	testkit.NoError(b, err)
	return page, true
}
