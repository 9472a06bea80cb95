-- Run this with psql as outbox_owner after relay migrate. For roles of other names:
-- psql -v relay=outbox_relay -v app=shop -f grants.sql
\if :{?relay}
\else
  \set relay outbox_relay
\endif
\if :{?app}
\else
  \set app shop
\endif
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_events, outbox_batches, outbox_dead_letters, outbox_buffers, outbox_rates, outbox_sinks, outbox_relays TO :"relay";
GRANT USAGE ON SEQUENCE outbox_events_id_seq, outbox_numbers TO :"relay";
SELECT format('GRANT SELECT, INSERT ON outbox_archive TO %I', :'relay')
WHERE to_regclass('outbox_archive') IS NOT NULL \gexec
-- The application. Rails and Django read back the id they inserted; others do not need the SELECT.
GRANT INSERT ON outbox_events TO :"app";
GRANT SELECT (id) ON outbox_events TO :"app";
