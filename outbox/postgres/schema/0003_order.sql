-- +goose Up

-- What an ordered buffer's batches hold: the hashes of their events' keys. NULL:
-- the batch was made without order.
ALTER TABLE {{.Batches}} ADD COLUMN IF NOT EXISTS lanes integer[];
