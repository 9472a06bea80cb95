-- +goose Up

-- The address of the sink whose outage a batch waits for, '' for the sink as a
-- whole: it may be woken. NULL: it may not.
ALTER TABLE {{.Batches}} ADD COLUMN IF NOT EXISTS address text;

-- The group_id of the batch in which the dead-letter hook is told; NULL: in none.
-- It is kept when the hook has heard.
ALTER TABLE {{.DeadLetters}} ADD COLUMN IF NOT EXISTS hook_group_id uuid;

-- Those that are open, those to be told, and those being told: none of the relay's
-- statements walks over the letters that are done with.
CREATE INDEX IF NOT EXISTS {{.DeadOpen}} ON {{.DeadLetters}} (pipeline, event_id, group_id)
    WHERE closed_at IS NULL;
CREATE INDEX IF NOT EXISTS {{.DeadUntold}} ON {{.DeadLetters}} (pipeline, event_id, group_id)
    WHERE closed_at IS NULL AND notified_at IS NULL AND hook_group_id IS NULL;
CREATE INDEX IF NOT EXISTS {{.DeadBeingTold}} ON {{.DeadLetters}} (hook_group_id)
    WHERE notified_at IS NULL AND hook_group_id IS NOT NULL;
