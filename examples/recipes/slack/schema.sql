-- The application's own table, and a trigger that makes an event of each order, in the
-- same transaction. outbox_events is the relay's: `relay migrate` makes it.
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
