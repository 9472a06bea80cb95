package doctor

import (
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestBlockerFix_NeverTerminatesServerProcesses(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"walsender", "autovacuum worker"} {
		if fix := blockerFix(&buffer.VacuumBlocker{Kind: buffer.BlockedByTransaction, PID: 7, Backend: backend}); strings.Contains(fix, "SELECT") {
			t.Errorf("%s: got %q", backend, fix)
		}
	}
}
