-- Run this with psql as outbox_owner after relay migrate. For roles of other names:
-- psql -v relay=outbox_relay -v app=shop -f grants.sql
-- Run it once more for each further pipeline, with its source.table: -v table=bill_events
\if :{?relay}
\else
  \set relay outbox_relay
\endif
\if :{?app}
\else
  \set app shop
\endif
\if :{?table}
\else
  \set table outbox_events
\endif
GRANT SELECT, INSERT, UPDATE, DELETE ON :"table", outbox_batches, outbox_dead_letters, outbox_buffers, outbox_rates, outbox_sinks, outbox_relays TO :"relay";
GRANT USAGE ON SEQUENCE outbox_numbers TO :"relay";
SELECT format('GRANT USAGE ON SEQUENCE %s TO %I', pg_get_serial_sequence(quote_ident(:'table'), 'id'), :'relay')
WHERE pg_get_serial_sequence(quote_ident(:'table'), 'id') IS NOT NULL \gexec
SELECT format('GRANT SELECT, INSERT, DELETE ON outbox_archive TO %I', :'relay')
WHERE to_regclass('outbox_archive') IS NOT NULL \gexec
SELECT format('GRANT EXECUTE ON FUNCTION outbox_archive_maintain() TO %I', :'relay')
WHERE to_regprocedure('outbox_archive_maintain()') IS NOT NULL \gexec
-- The application. Rails and Django read back the id they inserted; others do not need the SELECT.
GRANT INSERT ON :"table" TO :"app";
GRANT SELECT (id) ON :"table" TO :"app";
