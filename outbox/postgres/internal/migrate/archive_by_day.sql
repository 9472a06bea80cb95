-- Delivered events, as they were deleted from the buffer, with a partition a day (UTC). A unique key needs the column by which a table is partitioned.
CREATE TABLE IF NOT EXISTS {{.Archive}} (
    id          bigint NOT NULL,
    topic       text NOT NULL,
    key         text,
    payload     {{.Payload}} NOT NULL,
    headers     json,
    created_at  timestamptz NOT NULL,
    group_id    uuid NOT NULL,
    archived_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    routes_no   bigint,                       -- several sinks: that of the batch; see outbox_sinks.routed
    PRIMARY KEY (id, group_id, archived_at)
) PARTITION BY RANGE (archived_at);

-- For relay replay.
CREATE INDEX ON {{.Archive}} (archived_at);

-- It takes the events of days that have no partition, so that no delivery waits for one.
CREATE TABLE IF NOT EXISTS {{.Default}} PARTITION OF {{.Archive}} DEFAULT;
