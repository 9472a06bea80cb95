-- A file as the first release made and left it: a batch that is leased, one that
-- waits, one that is marked, an event nobody has claimed, an open dead letter and
-- one that was replayed.

CREATE TABLE IF NOT EXISTS outbox_events (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    topic      TEXT NOT NULL CHECK (topic <> ''),
    key        TEXT,
    payload    TEXT NOT NULL CHECK (typeof(payload) = 'text' AND json_valid(payload)),
    headers    TEXT CHECK (headers IS NULL OR json_valid(headers) AND json_type(headers) = 'object'),
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
               CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%fZ', created_at)),
    group_id   TEXT
);

CREATE TABLE IF NOT EXISTS outbox_batches (
    group_id   TEXT PRIMARY KEY,
    buffer     TEXT NOT NULL,
    claim      TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('leased', 'waiting', 'delivered')),
    lease_no   INTEGER NOT NULL,
    due_at     TEXT NOT NULL,
    owner      TEXT NOT NULL,
    unfinished_leases INTEGER NOT NULL,
    attempts   INTEGER NOT NULL,
    outages    INTEGER NOT NULL,
    events     INTEGER NOT NULL,
    first_id   INTEGER NOT NULL,
    last_id    INTEGER NOT NULL,
    origins    TEXT NOT NULL DEFAULT '[]',
    delivered  TEXT NOT NULL DEFAULT '[]',
    oldest_at  TEXT NOT NULL,
    claimed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    error      TEXT
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS outbox_batches_due ON outbox_batches (buffer, due_at);

CREATE TABLE IF NOT EXISTS outbox_dead_letters (
    pipeline   TEXT NOT NULL,
    event_id   INTEGER NOT NULL,
    topic      TEXT NOT NULL,
    key        TEXT,
    payload    BLOB NOT NULL,
    headers    TEXT,
    created_at TEXT NOT NULL,
    group_id   TEXT NOT NULL,
    attempts   INTEGER NOT NULL,
    error      TEXT NOT NULL,
    died_at    TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    notified_at    TEXT,
    closed_at  TEXT,
    PRIMARY KEY (pipeline, event_id, group_id)
);
CREATE INDEX IF NOT EXISTS outbox_dead_letters_open ON outbox_dead_letters (pipeline) WHERE closed_at IS NULL;

CREATE TABLE IF NOT EXISTS outbox_buffers (
    buffer     TEXT PRIMARY KEY,
    claim      TEXT NOT NULL
);
INSERT OR IGNORE INTO outbox_buffers (buffer, claim) VALUES ('outbox_events', 'stamp');

CREATE TABLE outbox_events_migrations (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    version_id INTEGER NOT NULL,
    is_applied INTEGER NOT NULL,
    tstamp     TIMESTAMP DEFAULT (datetime('now'))
);
INSERT INTO outbox_events_migrations (version_id, is_applied) VALUES (0, 1), (1, 1);

INSERT INTO outbox_events (id, topic, key, payload, headers, created_at, group_id) VALUES
    (3, 't', 'k', '3', '{}', '2026-01-02T03:04:05.678Z', '01900000-0000-7000-8000-000000000001'),
    (4, 't', NULL, '4', NULL, '2026-01-02T03:04:05.678Z', '01900000-0000-7000-8000-000000000001'),
    (5, 't', NULL, '5', NULL, '2026-01-02T03:04:05.678Z', '01900000-0000-7000-8000-000000000002'),
    (6, 't', NULL, '6', NULL, '2026-01-02T03:04:05.678Z', '01900000-0000-7000-8000-000000000003'),
    (7, 't', NULL, '7', NULL, '2026-01-02T03:04:05.678Z', NULL);
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events, first_id, last_id, delivered, oldest_at, error) VALUES
    ('01900000-0000-7000-8000-000000000001', 'outbox_events', 'stamp', 'leased', 1, '2026-01-02T03:04:06.000Z', 'o', 1, 0, 0, 2, 3, 4, '[]', '2026-01-02T03:04:05.678Z', NULL),
    ('01900000-0000-7000-8000-000000000002', 'outbox_events', 'stamp', 'waiting', 2, '2026-01-02T03:04:07.000Z', 'o', 0, 1, 2, 1, 5, 5, '[]', '2026-01-02T03:04:05.678Z', 'busy'),
    ('01900000-0000-7000-8000-000000000003', 'outbox_events', 'stamp', 'delivered', 1, '2026-01-02T03:04:08.000Z', 'o', 1, 0, 0, 1, 6, 6, '[6]', '2026-01-02T03:04:05.678Z', NULL);
INSERT INTO outbox_dead_letters (pipeline, event_id, topic, key, payload, headers, created_at, group_id, attempts, error, closed_at) VALUES
    ('orders', 1, 't', 'k', '1', '{}', '2026-01-02T03:04:05.678Z', '01900000-0000-7000-8000-000000000004', 3, 'refused', NULL),
    ('orders', 2, 't', NULL, '2', NULL, '2026-01-02T03:04:05.678Z', '01900000-0000-7000-8000-000000000004', 3, 'refused', '2026-01-02T03:04:09.000Z');
