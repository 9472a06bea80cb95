-- The shop that all examples sell from. The relay's own tables are not here:
-- `relay migrate` or schema.sql makes them.
CREATE TABLE IF NOT EXISTS customers (
    id text PRIMARY KEY
);

CREATE TABLE IF NOT EXISTS orders (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- Deferred: an order of a customer nobody knows is refused at COMMIT, when its
    -- event was inserted already. The event goes with it.
    customer_id text NOT NULL REFERENCES customers DEFERRABLE INITIALLY DEFERRED,
    cents       integer NOT NULL CHECK (cents > 0),
    shipped_at  timestamptz
);

INSERT INTO customers (id) VALUES ('customer-7') ON CONFLICT (id) DO NOTHING;
