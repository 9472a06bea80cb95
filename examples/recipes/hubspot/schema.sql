-- The application's own tables. Each row of contact_activity_events is an event; the
-- relay deletes it when HubSpot has it.
CREATE TABLE leads (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    email      text NOT NULL,
    first_name text
);

CREATE TABLE contact_activities (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lead_id     bigint NOT NULL, -- leads are deleted when people ask for it
    kind        text NOT NULL,
    happened_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE contact_activity_events (
    id                  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    contact_activity_id bigint NOT NULL REFERENCES contact_activities,
    created_at          timestamptz NOT NULL DEFAULT now(),
    group_id            uuid -- the relay's: NULL until it claims the event
);
