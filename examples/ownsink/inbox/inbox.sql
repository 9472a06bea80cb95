-- seq is the order of arrival. An event with a dedupe_id that is in the table is not inserted again, so delete rows only
-- when they are older than the relay's retries.
CREATE TABLE inbox (
    seq         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    dedupe_id   text NOT NULL UNIQUE,
    event_id    text NOT NULL,
    topic       text NOT NULL,
    key         text,
    payload     bytea NOT NULL,
    headers     text,
    created_at  timestamptz NOT NULL,
    group_id    uuid NOT NULL,
    dead_letter text,
    arrived_at  timestamptz NOT NULL DEFAULT now()
);
