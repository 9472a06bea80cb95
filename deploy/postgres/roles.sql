-- The roles of the relay, without passwords. An administrator of the application's
-- database runs this once; \password then sets the passwords.
CREATE ROLE outbox_owner LOGIN; -- owns the relay's tables and runs relay migrate
CREATE ROLE outbox_relay LOGIN; -- runs every other command with the privileges of grants.sql
GRANT CREATE, USAGE ON SCHEMA public TO outbox_owner;
GRANT USAGE ON SCHEMA public TO outbox_relay;
-- The relay sees since when transactions of other roles are open, and so which one blocks vacuum or holds a lock. Without it
-- relay_source_oldest_transaction_seconds is unknown. The role reads no table with it, but the text of running queries.
GRANT pg_read_all_stats TO outbox_relay;
