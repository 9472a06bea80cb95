-- The application's own table, and a trigger that inserts an event for each invoice in the
-- same transaction. `relay migrate` creates outbox_events.
CREATE TABLE invoices (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer       text NOT NULL, -- Stripe's id of it, cus_...
    payment_method text NOT NULL,
    cents          bigint NOT NULL,
    currency       text NOT NULL DEFAULT 'eur'
);

CREATE FUNCTION invoice_due() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox_events (topic, key, payload) VALUES ('payment_intents', NEW.customer, to_jsonb(NEW));
    RETURN NULL;
END $$;

CREATE TRIGGER invoice_due AFTER INSERT ON invoices
    FOR EACH ROW EXECUTE FUNCTION invoice_due();
