-- +goose Up

-- Of a buffer table of the user's own whose primary key is a uuid: the keys of the
-- batch's events, in the order of the numbers first_id to last_id that stand for them
-- in the relay.
ALTER TABLE {{.Batches}} ADD COLUMN IF NOT EXISTS uuids uuid[];

-- What such a table's event was: its uuid, and its row, so that it can be put back.
ALTER TABLE {{.DeadLetters}} ADD COLUMN IF NOT EXISTS event_uuid uuid;
ALTER TABLE {{.DeadLetters}} ADD COLUMN IF NOT EXISTS event_row jsonb;

-- Numbers for events that have none: each batch takes as many as the largest has.
CREATE SEQUENCE IF NOT EXISTS {{.Numbers}} INCREMENT BY 1000000;

-- Rates that processes share: when the next request may begin.
CREATE TABLE IF NOT EXISTS {{.Rates}} (
    name    text PRIMARY KEY,
    next_at timestamptz NOT NULL
);
