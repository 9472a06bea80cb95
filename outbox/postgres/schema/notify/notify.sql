-- Rings for the relay when events were inserted: one function for every buffer, whose
-- oid is in the channel's name. It runs as whoever inserts, needs nothing of that role,
-- and finds nothing by the search path.
CREATE OR REPLACE FUNCTION {{.Ring}}() RETURNS pg_catalog.trigger LANGUAGE plpgsql AS $ring$
BEGIN
    PERFORM pg_catalog.pg_notify(pg_catalog.concat('relay_', TG_RELID), '');
    RETURN NULL;
END $ring$;

-- A relay that sleeps holds this lock alone, so that it cannot be shared: then the
-- insert rings. While the relay is awake, or there is none, the insert shares it until
-- its transaction is over, and nobody falls asleep beside it. In WHEN and not in the
-- function: most inserts need not enter that.
CREATE TRIGGER outbox_notify AFTER INSERT ON {{.Events}} FOR EACH STATEMENT
    WHEN (NOT pg_catalog.pg_try_advisory_xact_lock_shared(1919711607, '{{.EventsText}}'::pg_catalog.regclass::pg_catalog.oid::pg_catalog.int4))
    EXECUTE FUNCTION {{.Ring}}();
