package pipeline_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/pipeline"
)

// TestReady_DatabaseTakesNoWrites: a database that is read-only, or whose disk is full, is why a relay is not ready, also while no event waits.
func TestReady_DatabaseTakesNoWrites(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	p := start(t, d.buffer(t, "relay"), redisAt(t, testserver.SharedRedis(t)), nil)
	ready := func(class string) {
		t.Helper()
		testkit.Eventually(t, func() error {
			err := p.Ready()
			why, _ := errors.AsType[*pipeline.NotReady](err)
			if class == "" && err != nil || class != "" && (why == nil || why.Class() != class || !strings.Contains(err.Error(), "takes no writes")) {
				return fmt.Errorf("not ready: %w", err)
			}
			return nil
		})
	}
	ready("")
	d.exec(t, `CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		RAISE 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$`)
	d.exec(t, "CREATE TRIGGER full_disk BEFORE INSERT ON outbox_relays FOR EACH ROW EXECUTE FUNCTION full_disk()")
	ready("database")
	d.exec(t, "DROP TRIGGER full_disk ON outbox_relays")
	ready("")
}
