package notready_test

import (
	"errors"
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/notready"
)

func TestNew(t *testing.T) {
	t.Parallel()
	if err := notready.New("app.db", nil); err != nil {
		t.Errorf("got %v", err)
	}
	err := notready.New("app.db", []buffer.Finding{{Text: "table a does not exist", Fix: notready.MigrateCommand}, {Text: "b", Fix: "c"}})
	const want = "buffer is not ready: app.db: table a does not exist: relay migrate -c relay.yaml; b: c"
	if !errors.Is(err, buffer.ErrNotReady) || err.Error() != want {
		t.Errorf("got %v; expected %s", err, want)
	}
}
