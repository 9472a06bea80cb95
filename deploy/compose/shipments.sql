-- The privileges of grants.sql for the second buffer of docker-compose.yml.
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_shipments TO outbox_relay;
GRANT USAGE ON SEQUENCE outbox_shipments_id_seq TO outbox_relay;

GRANT INSERT ON outbox_shipments TO shop;
