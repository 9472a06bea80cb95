-- The application's own table: a row is a lead for Salesforce, inserted by the form that
-- somebody filled in.
CREATE TABLE new_leads (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    first_name text,
    last_name  text,
    company    text,
    email      text,
    created_at timestamptz NOT NULL DEFAULT now(),
    group_id   uuid -- the relay's: NULL until it claims the row
);
