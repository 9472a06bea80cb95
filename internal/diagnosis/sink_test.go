package diagnosis

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// failingSink has a Check that fails.
type failingSink struct{ err error }

func (s failingSink) Send(context.Context, *buffer.Batch) error { return s.err }
func (s failingSink) Check(context.Context) error               { return s.err }
func (failingSink) Close() error                                { return nil }

// The fix for a server that does not answer is another one than for a server that is away or full.
func TestSinkFindings_Unavailable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		driver string
		err    error
		fix    string
	}{
		"away":           {"redis", sink.Unavailable(fmt.Errorf("connection refused")), "start it, free space on it, or correct sink.url"},
		"hangs":          {"redis", sink.Unavailable(fmt.Errorf("redis: %w", context.DeadlineExceeded)), "start it, restart it if it hangs, or correct sink.url"},
		"an API hangs":   {"http", sink.Unavailable(context.DeadlineExceeded), "start it, or correct sink.url"},
		"wrong settings": {"redis", fmt.Errorf("no such command"), "correct sink.url in the configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := sinkFindings(t.Context(), "sink.url", &config.Sink{Driver: c.driver}, failingSink{c.err})
			if len(got) != 1 || !strings.HasPrefix(got[0].Fix, c.fix) {
				t.Errorf("the findings are %+v, want the fix %s", got, c.fix)
			}
		})
	}
}
