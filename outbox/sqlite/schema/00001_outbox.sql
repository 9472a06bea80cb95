-- +goose Up
-- +goose StatementBegin

{{if not .Custom -}}
-- The buffer: applications insert here, inside their own transactions. Its only
-- index beside the primary key is that of delayed events, in which others have no
-- entry. AUTOINCREMENT keeps an id from ever being handed out
-- twice: a sink would take the second event for a duplicate of the first.
CREATE TABLE IF NOT EXISTS {{.Events}} (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    topic      TEXT NOT NULL CHECK (topic <> ''),
    key        TEXT,
    payload    {{.Payload}},
    headers    TEXT CHECK (headers IS NULL OR json_valid(headers) AND json_type(headers) = 'object'),
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
               CHECK (created_at IS strftime('%Y-%m-%dT%H:%M:%fZ', created_at)),
    group_id   TEXT CHECK (length(group_id) = 36), -- the relay sets it
    available_at {{.Delayed}} -- not delivered before; NULL: at once
);
CREATE INDEX IF NOT EXISTS {{.DelayedIndex}} ON {{.Events}} (available_at, group_id) WHERE available_at IS NOT NULL AND group_id IS NULL;

{{end -}}
-- The ledger: one row a live batch; empty when the relay is idle.
CREATE TABLE IF NOT EXISTS outbox_batches (
    group_id   TEXT PRIMARY KEY,
    buffer     TEXT NOT NULL,                -- table the events are in
    claim      TEXT NOT NULL,                -- how the batch's rows are found: stamp or range
    state      TEXT NOT NULL CHECK (state IN ('leased', 'waiting', 'delivered')),
    lease_no   INTEGER NOT NULL,             -- the fence: rises with every lease
    due_at     TEXT NOT NULL,                -- lease's end, retry's time, or delete's next time
    owner      TEXT NOT NULL,                -- who holds the lease, for people to read
    unfinished_leases INTEGER NOT NULL,      -- leases in a row that ended without a settle
    attempts   INTEGER NOT NULL,             -- refusals
    outages    INTEGER NOT NULL,             -- sends in a row that failed because the sink was unavailable
    events     INTEGER NOT NULL,
    first_id   INTEGER NOT NULL,
    last_id    INTEGER NOT NULL,
    origins    TEXT NOT NULL DEFAULT '[]',   -- group_ids these events were sent under before, JSON
    delivered  TEXT NOT NULL DEFAULT '[]',   -- ids that reached the sink and are still to be deleted, JSON
    oldest_at  TEXT NOT NULL,                -- created_at of the oldest event
    claimed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    error      TEXT,                         -- why it waits
    address    TEXT,                         -- address within the sink that is unavailable
    lanes      TEXT,                         -- hashes of its events' keys, JSON; several sinks: null stands for no key; NULL: made without order
    members    TEXT,                         -- range, and several sinks: first and last id of each run of its events, JSON
    newest_at  TEXT,                         -- range: created_at of the youngest event
    sink       TEXT NOT NULL DEFAULT 'default', -- one of outbox_sinks; 'default': the only one; '*': claimed, not routed yet
    claim_id   TEXT,                         -- several sinks: the same in all rows that may share an event; NULL: no other row has any
    routes_no  INTEGER,                      -- several sinks: that of the buffer when the events were routed; NULL: not known
    seq        INTEGER,                      -- order by key and several sinks: the order of claims
    history    TEXT                          -- what was tried, JSON; NULL: nothing yet
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS outbox_batches_due ON outbox_batches (buffer, sink, due_at);
CREATE INDEX IF NOT EXISTS outbox_batches_claim ON outbox_batches (claim_id) WHERE claim_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS outbox_batches_seq ON outbox_batches (buffer, sink, seq, first_id) WHERE seq IS NOT NULL;
CREATE INDEX IF NOT EXISTS outbox_batches_last_seq ON outbox_batches (buffer, seq) WHERE seq IS NOT NULL;

-- Dead letters. event_id keeps the event's identity. The payload is text or
-- blob, as in the buffer it came from.
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
    notified_at TEXT,                        -- the dead-letter hook accepted it
    closed_at  TEXT,
    closed_as  TEXT CHECK (closed_as IN ('replayed', 'discarded')),
    closed_by  TEXT,                         -- who replayed or discarded it
    closed_reason TEXT,                      -- why
    hook_group_id TEXT,                      -- batch of the dead-letter hook that it is in
    event_row  TEXT,                         -- the row of a custom table, JSON
    sink       TEXT NOT NULL DEFAULT 'default', -- the sink that refused it; 'default' is a single one
    history    TEXT,                         -- what was tried: when, by which relay, and what came of it, JSON
    PRIMARY KEY (pipeline, event_id, group_id)
);

-- Closed and notified dead letters may be kept by the million. Statements that
-- look for the others do not walk over them.
CREATE INDEX IF NOT EXISTS outbox_dead_letters_listed ON outbox_dead_letters (pipeline, event_id, group_id)
    WHERE closed_at IS NULL;
CREATE INDEX IF NOT EXISTS outbox_dead_letters_unnotified ON outbox_dead_letters (pipeline, event_id, group_id)
    WHERE closed_at IS NULL AND notified_at IS NULL AND hook_group_id IS NULL;
CREATE INDEX IF NOT EXISTS outbox_dead_letters_notifying ON outbox_dead_letters (pipeline, hook_group_id, event_id)
    WHERE hook_group_id IS NOT NULL AND notified_at IS NULL;

-- One row a buffer: how its events are claimed, and the pipeline that owns it.
-- A relay that would claim in another mode, or for another pipeline, must not
-- claim at all.
CREATE TABLE IF NOT EXISTS outbox_buffers (
    buffer     TEXT PRIMARY KEY,
    claim      TEXT NOT NULL,
    pipeline   TEXT,                         -- NULL before the first claim
    owned_since TEXT,
    routed     INTEGER NOT NULL DEFAULT 0,   -- 1: to the sinks in outbox_sinks; 0: there is a single one
    routes_no  INTEGER NOT NULL DEFAULT 0,   -- rises with every change of the buffer's rows in outbox_sinks
    paused_at  TEXT,                         -- relays claim and send nothing until it is resumed
    paused_by  TEXT,
    paused_reason TEXT,
    retry_request TEXT,                      -- the last relay retry: relays end their pauses, once
    retry_at   TEXT,                         -- when
    archive    TEXT                          -- the archive of the last relay that has one; NULL: none, or archiving was turned off
);
INSERT OR IGNORE INTO outbox_buffers (buffer, claim) VALUES ({{.Buffer}}, 'stamp');

-- The sinks that the events of a buffer are routed to; none for a single one.
CREATE TABLE IF NOT EXISTS outbox_sinks (
    buffer     TEXT NOT NULL,
    sink       TEXT NOT NULL,
    match      TEXT NOT NULL DEFAULT '[]',   -- patterns, JSON; a sink without one takes every event
    batch_size INTEGER NOT NULL,
    hook       INTEGER NOT NULL DEFAULT 0,   -- 1: its dead letters go to a hook of its own, not to the pipeline's
    formerly   TEXT NOT NULL DEFAULT '[]',   -- names that it had before, JSON; 'default': it was the only sink
    routed     TEXT NOT NULL DEFAULT '[0]',  -- the routes_no with which events are routed to it, JSON: from the first on, not from the second on, and so on
    registered_at TEXT,                      -- NULL: before fills were possible
    seen_at    TEXT,                         -- when a relay that serves it was running; at most a minute ago while one is
    dropped_at TEXT,                         -- nothing is routed to it any more
    dropped_as TEXT CHECK (dropped_as IN ('discarded', 'dead')),
    paused_at  TEXT,                         -- relays send it nothing until it is resumed
    paused_by  TEXT,
    paused_reason TEXT,
    match_before TEXT,                       -- match, before a start changed it, JSON
    match_at   TEXT,                         -- when
    PRIMARY KEY (buffer, sink)
) WITHOUT ROWID;

-- The relays that run, and those of the last day: one row a process and sink, for people to read.
CREATE TABLE IF NOT EXISTS outbox_relays (
    buffer     TEXT NOT NULL,
    sink       TEXT NOT NULL,                -- one of outbox_sinks; '': the only one
    owner      TEXT NOT NULL,                -- the process: host/pid/pipeline
    version    TEXT NOT NULL,
    started_at TEXT NOT NULL,
    seen_at    TEXT NOT NULL,                -- at most 10 s ago while it runs
    stopped    INTEGER NOT NULL DEFAULT 0,   -- 1: it ended in order
    not_ready  TEXT NOT NULL DEFAULT '',     -- why it makes no progress
    not_ready_class TEXT NOT NULL DEFAULT '', -- database, sink, stalled or refusing; behind a slash what is finer, such as sink/full
    not_ready_at TEXT,                       -- since when
    notice     TEXT NOT NULL DEFAULT '',     -- what else operators should know, a line each
    answers    TEXT NOT NULL DEFAULT '',     -- answers that look wrong, of which events count as delivered, a line each
    answers_before TEXT NOT NULL DEFAULT '', -- those that earlier processes of this name had
    answered_at TEXT,                        -- when answers changed
    probes     INTEGER NOT NULL DEFAULT 1,   -- 1: it tries the sink that batches wait for every second or so
    delivered  INTEGER NOT NULL,             -- events since it started
    dead       INTEGER NOT NULL,
    last_minute INTEGER NOT NULL,            -- events delivered in the minute before seen_at
    delivered_at TEXT,                       -- the last delivery
    latencies TEXT NOT NULL DEFAULT '',      -- how many of delivered took at most so many seconds since their insert: 0.005:120 0.01:3
    PRIMARY KEY (buffer, sink, owner)
) WITHOUT ROWID;

-- The rows of a custom table whose rows are marked, as they were when they were stamped. A row that has changed since is not marked.
CREATE TABLE IF NOT EXISTS outbox_versions (
    buffer     TEXT NOT NULL,
    event_id   INTEGER NOT NULL,
    version    INTEGER NOT NULL,             -- a hash of the row
    PRIMARY KEY (buffer, event_id)
) WITHOUT ROWID;

-- Rates that processes share: when the next request may begin.
CREATE TABLE IF NOT EXISTS outbox_rates (
    name    TEXT PRIMARY KEY,
    next_at TEXT NOT NULL
);
-- +goose StatementEnd
