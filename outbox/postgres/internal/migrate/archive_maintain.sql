-- The relay's role owns no table, so it can make and drop partitions only here: those of this archive, ahead of time, and when they are older than
-- the setting relay.archive_keep, an interval; '' is for ever. It returns how many partitions it made and dropped, how many events it deleted
-- from the default partition, and whether there is more to do.
CREATE OR REPLACE FUNCTION {{.Maintain}}() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
-- A settle waits for the lock of a DROP, but not for longer than that.
SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' SET lock_timeout = '100ms' AS $$
DECLARE
    archive   regclass := {{.ArchiveText}};
    keep      interval := nullif(current_setting('relay.archive_keep', true), '')::interval;
    today     timestamptz := date_trunc('day', clock_timestamp());
    fallback  regclass;
    day       timestamptz;
    partition text;
    old       regclass;
    made      integer := 0;
    deleted   bigint := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('relay archive partitions ' || archive::oid, 0)) THEN
        RETURN '0 0 0 f';
    END IF;
    IF keep < interval '1 hour' THEN
        RAISE EXCEPTION 'relay.archive_keep is %, expected 1 hour or more', keep;
    END IF;
    SELECT nullif(partdefid, 0)::regclass INTO fallback FROM pg_partitioned_table WHERE partrelid = archive;
    FOR n IN 0..7 LOOP
        -- An ATTACH reads the default partition, and keeps settles from it meanwhile.
        EXIT WHEN pg_relation_size(fallback) > 64 * 1024 * 1024;
        day := today + n * interval '24 hours';
        partition := format('%I.%I', {{.SchemaText}}, {{.TableText}} || '_p' || to_char(day, 'YYYYMMDD'));
        CONTINUE WHEN to_regclass(partition) IS NOT NULL OR EXISTS (
            SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = archive AND day >= (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''([^'']+)''\)'))[1]::timestamptz
              AND day < (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \(''([^'']+)''\)'))[1]::timestamptz);
        BEGIN
            -- ATTACH locks less than CREATE TABLE ... PARTITION OF: no INSERT waits for it.
            EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL)', partition, archive);
            EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', archive, partition, day, day + interval '24 hours');
            made := made + 1;
        EXCEPTION WHEN lock_not_available OR check_violation OR invalid_object_definition THEN
            NULL; -- the default partition is in use, or has events of that day; or another partition has a part of it
        END;
    END LOOP;
    IF keep IS NULL THEN
        RETURN format('%s 0 0 f', made);
    END IF;
    IF fallback IS NOT NULL THEN
        EXECUTE format('DELETE FROM %1$s WHERE ctid = ANY (ARRAY(SELECT ctid FROM %1$s WHERE archived_at < $1 ORDER BY archived_at LIMIT 1000))', fallback)
        USING clock_timestamp() - keep;
        GET DIAGNOSTICS deleted = ROW_COUNT;
    END IF;
    SELECT c.oid::regclass INTO old
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid,
         LATERAL (SELECT (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \(''([^'']+)''\)'))[1]::timestamptz AS ends) b
    WHERE i.inhparent = archive AND b.ends <= clock_timestamp() - keep ORDER BY b.ends LIMIT 1;
    IF old IS NULL THEN
        RETURN format('%s 0 %s %s', made, deleted, deleted = 1000);
    END IF;
    BEGIN
        EXECUTE format('DROP TABLE %s', old); -- the last statement: it locks the archive until the commit
    EXCEPTION WHEN lock_not_available THEN
        RETURN format('%s 0 %s f', made, deleted); -- somebody reads the archive; the next round tries again
    END;
    RETURN format('%s 1 %s t', made, deleted);
END $$;
REVOKE ALL ON FUNCTION {{.Maintain}}() FROM PUBLIC;
