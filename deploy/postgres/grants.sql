-- Run this as outbox_owner after relay migrate. shop is the application's role.
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_events, outbox_batches, outbox_dead_letters, outbox_buffers, outbox_rates, outbox_sinks, outbox_relays TO outbox_relay;
GRANT USAGE ON SEQUENCE outbox_events_id_seq, outbox_numbers TO outbox_relay;
DO $$ BEGIN
  IF to_regclass('outbox_archive') IS NOT NULL THEN -- the name under archive in relay.yaml
    GRANT SELECT, INSERT ON outbox_archive TO outbox_relay;
  END IF;
END $$;

GRANT INSERT ON outbox_events TO shop;
GRANT SELECT (id) ON outbox_events TO shop; -- for Rails and Django only, which read back the id they inserted
