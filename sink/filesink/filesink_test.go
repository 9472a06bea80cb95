package filesink_test

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/filesink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

var keeps = sinktest.Keeps{
	Topic: true, Key: true, Headers: true, HeadersText: true, CreatedAt: true, AnyText: true, Bytes: true,
}

// files writes to a file by its path.
var files = sinktest.Harness{
	Keeps: keeps,
	Open: func(t testing.TB) sinktest.Destination {
		path := filepath.Join(t.TempDir(), "events.ndjson")
		return sinktest.Destination{
			Connect:  func(t testing.TB) sink.Sink { return open(t, path) },
			Arrivals: func(t testing.TB) []sinktest.Arrival { return arrivals(t, path) },
		}
	},
	OpenBroken: func(t testing.TB) sink.Sink {
		return open(t, filepath.Join(t.TempDir(), "no-such-directory", "events.ndjson"))
	},
}

// redirected writes to a standard output that is redirected to a file.
var redirected = sinktest.Harness{
	Keeps: keeps,
	Open: func(t testing.TB) sinktest.Destination {
		path := filepath.Join(t.TempDir(), "stdout")
		f := create(t, path)
		t.Cleanup(func() { closeFile(t, f) })
		return sinktest.Destination{
			Connect:  func(t testing.TB) sink.Sink { return stdout(t, f) },
			Arrivals: func(t testing.TB) []sinktest.Arrival { return arrivals(t, path) },
		}
	},
	OpenBroken: func(t testing.TB) sink.Sink {
		f := create(t, filepath.Join(t.TempDir(), "stdout"))
		closeFile(t, f)
		return stdout(t, f)
	},
}

func TestFile(t *testing.T)        { sinktest.Run(t, files) }
func TestStdout(t *testing.T)      { sinktest.Run(t, redirected) }
func BenchmarkFile(b *testing.B)   { sinktest.Bench(b, files) }
func BenchmarkStdout(b *testing.B) { sinktest.Bench(b, redirected) }

func open(t testing.TB, path string) *filesink.Sink {
	t.Helper()
	return newSink(t, filesink.Config{URL: "file://" + path}, nil)
}

func create(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Create(path)
	testkit.NoError(t, err)
	return f
}

func closeFile(t testing.TB, f *os.File) {
	t.Helper()
	testkit.NoError(t, f.Close())
}

func lines(t testing.TB, path string) [][]byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		t.Fatalf("%s ends within a line: %q", path, text[max(0, len(text)-100):])
	}
	var all [][]byte
	for scan := bufio.NewScanner(bytes.NewReader(text)); scan.Scan(); {
		all = append(all, bytes.Clone(scan.Bytes()))
	}
	return all
}

func arrivals(t testing.TB, path string) []sinktest.Arrival {
	t.Helper()
	var all []sinktest.Arrival
	for _, line := range lines(t, path) {
		all = append(all, sinktest.ParseEnvelope(t, line))
	}
	return all
}
