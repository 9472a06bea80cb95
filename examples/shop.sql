-- The shop of all examples. `relay migrate` or schema.sql creates the relay's own tables.
CREATE TABLE IF NOT EXISTS customers (
    id text PRIMARY KEY
);

CREATE TABLE IF NOT EXISTS orders (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- Deferred: an order of an unknown customer is rejected at COMMIT, after its event
    -- was inserted. The event disappears with it.
    customer_id text NOT NULL REFERENCES customers DEFERRABLE INITIALLY DEFERRED,
    cents       integer NOT NULL CHECK (cents > 0),
    shipped_at  timestamptz
);

INSERT INTO customers (id) VALUES ('customer-7') ON CONFLICT (id) DO NOTHING;
