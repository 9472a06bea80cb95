-- +goose Up

-- The ids that a batch holds, where it was claimed as a range: exactly those that
-- could be seen, so that what commits late between them is no part of it. NULL: its
-- events carry its group_id.
ALTER TABLE {{.Batches}} ADD COLUMN IF NOT EXISTS members int8multirange;

-- A claim asks which ids beyond its cursor live batches hold, and walks over none of
-- the rows of batches that are gone.
CREATE INDEX IF NOT EXISTS {{.BatchesLast}} ON {{.Batches}} (buffer, last_id);
{{- if not .Own}}

-- TRUNCATE of the buffer takes its batches with it: after RESTART IDENTITY their ids
-- would be those of other events.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION {{.Truncated}}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- With a snapshot of before it would not see the batches that were claimed since.
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'TRUNCATE of %.% needs a transaction that is READ COMMITTED, and this one is %',
            TG_TABLE_SCHEMA, TG_TABLE_NAME, upper(current_setting('transaction_isolation'))
            USING HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED; TRUNCATE ...; COMMIT';
    END IF;
    EXECUTE format('DELETE FROM %I.outbox_batches WHERE buffer = $1', coalesce(TG_ARGV[0], TG_TABLE_SCHEMA))
    USING TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME;
    RETURN NULL;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION {{.Truncated}}() FROM PUBLIC;
CREATE OR REPLACE TRIGGER outbox_truncated AFTER TRUNCATE ON {{.Events}}
    FOR EACH STATEMENT EXECUTE FUNCTION {{.Truncated}}({{.OwnSchema}});
{{- end}}
