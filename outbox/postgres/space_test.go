package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
)

func TestCheckSpace(t *testing.T) {
	t.Parallel()
	d := newDoctorDB(t, testserver.Postgres(t))
	b, err := postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	space := func(full bool) {
		t.Helper()
		for _, c := range []buffer.SpaceChecker{b, b.Sink("one").(buffer.SpaceChecker)} {
			if err := c.CheckSpace(t.Context()); errors.Is(err, buffer.ErrNoWrites) != full || err != nil && (!full || !strings.Contains(err.Error(), "its disk is full")) {
				t.Errorf("CheckSpace returns %v", err)
			}
		}
	}
	space(false)
	d.exec("BEGIN; CREATE FUNCTION fails(code text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE 'no' USING ERRCODE = code; END $$; COMMIT")
	postgres.SetSpaceQuery(b, "SELECT public.fails('53100')")
	space(true)
	postgres.SetSpaceQuery(b, "SELECT public.fails('53400')") // temp_file_limit says nothing of the disk
	space(true)
	postgres.SetSpaceQuery(b, "")
	space(false)
	postgres.SetSpaceQuery(b, "SELECT public.fails('53400')")
	space(false)
}
