package sinktest_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/filesink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

// ascii is a sink whose destination takes no topic beyond ASCII.
type ascii struct{ sink.Sink }

func (s ascii) Send(ctx context.Context, b *buffer.Batch) error {
	var good []int
	var rejected []sink.EventError
	for i := range b.Events {
		if strings.ContainsFunc(b.Events[i].Topic, func(r rune) bool { return r > '~' }) {
			rejected = append(rejected, sink.EventError{Index: i, Err: sink.Permanent(errors.New("the topic is not ASCII"))})
			continue
		}
		good = append(good, i)
	}
	if len(rejected) == 0 {
		return s.Sink.Send(ctx, b)
	}
	part := b.Part(good)
	part.GroupID = b.GroupID
	if err := s.Sink.Send(ctx, part); err != nil {
		return err
	}
	return sink.NewBatchError(rejected)
}

func TestASCIITopics(t *testing.T) {
	open := func(t testing.TB, path string) sink.Sink {
		s, err := filesink.New(filesink.Config{URL: "file://" + path}, nil)
		testkit.NoError(t, err)
		return ascii{s}
	}
	sinktest.Run(t, sinktest.Harness{
		Keeps: sinktest.Keeps{Topic: true, Key: true, Headers: true, HeadersText: true, CreatedAt: true, AnyText: true, Bytes: true, ASCIITopics: true},
		Open: func(t testing.TB) sinktest.Destination {
			path := filepath.Join(t.TempDir(), "events.ndjson")
			return sinktest.Destination{
				Connect: func(t testing.TB) sink.Sink { return open(t, path) },
				Arrivals: func(t testing.TB) (all []sinktest.Arrival) {
					text, err := os.ReadFile(path)
					if err != nil && !os.IsNotExist(err) {
						t.Fatal(err)
					}
					for line := range bytes.Lines(text) {
						all = append(all, sinktest.ParseEnvelope(t, line))
					}
					return all
				},
			}
		},
		OpenBroken: func(t testing.TB) sink.Sink { return open(t, filepath.Join(t.TempDir(), "none", "events.ndjson")) },
	})
}
