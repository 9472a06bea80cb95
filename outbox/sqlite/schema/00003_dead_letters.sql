-- +goose Up
-- +goose StatementBegin

-- Dead letters are kept, closed and told ones by the million perhaps. Whoever
-- looks for those that are neither does not walk over the others.
CREATE INDEX IF NOT EXISTS outbox_dead_letters_listed ON outbox_dead_letters (pipeline, event_id, group_id)
    WHERE closed_at IS NULL;
CREATE INDEX IF NOT EXISTS outbox_dead_letters_unnotified ON outbox_dead_letters (pipeline, event_id, group_id)
    WHERE closed_at IS NULL AND notified_at IS NULL AND hook_group_id IS NULL;
CREATE INDEX IF NOT EXISTS outbox_dead_letters_notifying ON outbox_dead_letters (pipeline, hook_group_id, event_id)
    WHERE hook_group_id IS NOT NULL AND notified_at IS NULL;
-- +goose StatementEnd
