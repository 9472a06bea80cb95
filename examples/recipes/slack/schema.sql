-- The application's own table, and a trigger that inserts an event for each order in the
-- same transaction. `relay migrate` creates outbox_events.
CREATE TABLE orders (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    cents    bigint NOT NULL
);

CREATE FUNCTION order_placed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox_events (topic, key, payload) VALUES ('orders.created', NEW.customer, to_jsonb(NEW));
    RETURN NULL;
END $$;

CREATE TRIGGER order_placed AFTER INSERT ON orders
    FOR EACH ROW EXECUTE FUNCTION order_placed();
