package buffer_test

import (
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestRegisteredSink_Finding: nobody is told to drop a sink of the configuration, whose relays may run without a database that takes writes.
func TestRegisteredSink_Finding(t *testing.T) {
	t.Parallel()
	for _, configured := range []bool{true, false} {
		s := buffer.RegisteredSink{Name: "crm", Registered: true, Configured: configured, Batches: 3, Events: 120, SeenAt: time.Unix(1, 0), Unseen: time.Hour}
		f, ok := s.Finding()
		if !ok || strings.Contains(f.Fix, "relay sinks drop") == configured {
			t.Errorf("configured %v: %+v, %v", configured, f, ok)
		}
	}
}
