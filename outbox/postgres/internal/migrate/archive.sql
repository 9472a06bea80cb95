-- Delivered events, as they were deleted from the buffer.
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
    PRIMARY KEY (id, group_id)
);

-- For relay replay.
CREATE INDEX ON {{.Archive}} (archived_at);
