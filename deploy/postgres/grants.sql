-- Run this as outbox_owner after relay migrate. shop is the application's role.
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_events, outbox_batches, outbox_dead_letters, outbox_buffers TO outbox_relay;
GRANT USAGE ON SEQUENCE outbox_events_id_seq TO outbox_relay;

GRANT INSERT ON outbox_events TO shop;
GRANT SELECT (id) ON outbox_events TO shop; -- for Rails and Django only, which read back the id they inserted
