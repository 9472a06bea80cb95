-- +goose Up
-- +goose StatementBegin

-- Rates that processes share: when the next request may begin.
CREATE TABLE IF NOT EXISTS outbox_rates (
    name    TEXT PRIMARY KEY,
    next_at TEXT NOT NULL
);
-- +goose StatementEnd
