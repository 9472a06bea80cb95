package ledger

// OtherLedgerSQL returns the schema of another ledger that the buffer $1 belongs to; its own is in schema $2. The
// buffer's trigger outbox_truncated names the ledger, everybody may read that, and only the buffer's owner can change it. A ledger
// that is gone does not count: renaming a schema leaves the old name in the trigger. Bit 32 of tgtype is TRUNCATE.
const OtherLedgerSQL = `
SELECT ledger FROM (
  SELECT CASE t.tgnargs WHEN 0 THEN n.nspname::text
         ELSE convert_from(substring(t.tgargs FROM 1 FOR octet_length(t.tgargs) - 1), getdatabaseencoding()) END AS ledger
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.oid = to_regclass($1) AND t.tgname = 'outbox_truncated' AND t.tgtype & 32 <> 0) named
WHERE ledger <> $2 AND EXISTS (
  SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = ledger AND c.relname = 'outbox' || '_batches')`
