-- Notifies the relay of inserts: one function for all buffers; the channel's name holds the
-- table's oid. It runs as the inserting role, needs no privilege and uses no search_path.
CREATE OR REPLACE FUNCTION {{.Notify}}() RETURNS pg_catalog.trigger LANGUAGE plpgsql AS $notify$
BEGIN
    PERFORM pg_catalog.pg_notify(pg_catalog.concat('relay_', TG_RELID), '');
    RETURN NULL;
END $notify$;

-- An idle relay holds this lock exclusively, so that it cannot be shared: the insert notifies.
-- Otherwise the insert shares the lock until its transaction ends, and no relay becomes idle
-- before. The condition is in WHEN, because most inserts need not call the function.
CREATE OR REPLACE TRIGGER outbox_notify AFTER INSERT ON {{.Events}} FOR EACH STATEMENT
    WHEN (NOT pg_catalog.pg_try_advisory_xact_lock_shared(1919711607, '{{.EventsText}}'::pg_catalog.regclass::pg_catalog.oid::pg_catalog.int4))
    EXECUTE FUNCTION {{.Notify}}();
