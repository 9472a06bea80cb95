-- The application's own table, and a trigger that inserts an event for each change in the
-- same transaction. `relay migrate` creates outbox_events.
CREATE TABLE products (
    id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name  text NOT NULL,
    price text NOT NULL -- as the supplier writes it
);

CREATE FUNCTION product_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox_events (topic, key, payload)
    VALUES ('products', NEW.id::text, jsonb_build_object('name', NEW.name, 'price', NEW.price));
    RETURN NULL;
END $$;

CREATE TRIGGER product_changed AFTER INSERT OR UPDATE ON products
    FOR EACH ROW EXECUTE FUNCTION product_changed();
