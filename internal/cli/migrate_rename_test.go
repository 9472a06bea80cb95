package cli

import "testing"

// A second run changes nothing, and is no error.
func TestMigrate_RenamePipelineAgain(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, true)
	was, is := write(t, onePipeline("orders", db.url, "stdout:")), write(t, onePipeline("shop", db.url, "stdout:"))
	do(t, nil, "migrate", "-c", was).want(t, 0, "applied", "")
	do(t, nil, "migrate", "--rename-pipeline", "orders", "-c", is).want(t, 1, "shop: up to date\n", "pipeline orders neither owns its buffer") // nobody does yet
	db.exec("UPDATE outbox_buffers SET pipeline = 'orders', owned_since = '2026-01-02T03:04:05.000Z'")
	do(t, nil, "migrate", "--rename-pipeline", "nobody", "-c", is).want(t, 1, "shop: up to date\n", "pipeline nobody neither owns its buffer")
	do(t, nil, "migrate", "--rename-pipeline", "orders", "-c", is).want(t, 0, "shop: up to date\nshop: has taken over 0 dead letters from orders\n", "")
	do(t, nil, "migrate", "--rename-pipeline", "orders", "-c", is).want(t, 0, "shop: up to date\nshop: already renamed: it owns its buffer, and nothing belongs to orders\n", "")
}

// A pipeline gets a new name: relay run refuses to claim under it, and migrate --rename-pipeline gives it the buffer and the dead letters.
func TestMigrate_RenamePipeline(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.bury("orders", [3]string{"17", "orders.created", "refused"})
	db.exec("INSERT INTO outbox_buffers (buffer, claim, pipeline, owned_since) VALUES ('public.outbox_events', 'range', 'orders', '2026-01-02 03:04:05Z')")
	db.insert(1)
	path := write(t, onePipeline("shop", db.url, "stdout:"))
	r := start(t, nil, "run", "-c", path)
	r.waitForLog("pipeline orders owns buffer public.outbox_events since 2026-01-02 03:04:05 UTC")
	do(t, nil, "doctor", "-c", path).want(t, 1, "relay migrate --rename-pipeline orders -c "+path, "")
	do(t, nil, "migrate", "--rename-pipeline", "shop", "-c", path).want(t, 2, "", "expected the former name of one")
	do(t, nil, "migrate", "--rename-pipeline", "nobody", "-c", path).want(t, 1, "shop: applied trigger outbox_notify\n", "pipeline nobody neither owns its buffer nor has dead letters there")
	do(t, nil, "migrate", "--rename-pipeline", "orders", "-c", path).want(t, 0, "shop: up to date\nshop: has taken over 1 dead letter from orders\n", "")
	do(t, nil, "migrate", "--rename-pipeline", "orders", "-c", path).want(t, 0, "shop: up to date\nshop: already renamed: it owns its buffer, and nothing belongs to orders\n", "")
	r.waitForLog("counting backlog works again") // without a restart
	if got := db.open("shop"); got != "17" {
		t.Errorf("dead letters of the new name: %q", got)
	}
}
