-- PostgreSQL of docker-compose.yml runs this once, after roles.sql and shop.sql. The
-- passwords are for a trial on one machine.
ALTER ROLE outbox_owner PASSWORD 'owner';
ALTER ROLE outbox_relay PASSWORD 'relay';
CREATE ROLE shop LOGIN PASSWORD 'shop';
GRANT INSERT, SELECT (id), UPDATE (shipped_at) ON orders TO shop;
