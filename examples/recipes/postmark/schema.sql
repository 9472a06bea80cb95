-- The application's own table: a row is an e-mail to send, inserted in the transaction
-- that it is about.
CREATE TABLE outgoing_emails (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    recipient  text NOT NULL,
    subject    text NOT NULL,
    body       text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    group_id   uuid -- the relay's: NULL until it claims the row
);
