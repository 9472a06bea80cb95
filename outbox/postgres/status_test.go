package postgres_test

import (
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// The age of the oldest transaction is that of all roles, or unknown.
func TestStatus_HiddenTransactions(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	session(t, p.url, "report", "BEGIN", "SELECT 1")
	tables := []string{"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public", "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public"}
	for name, grants := range map[string][]string{"hidden_": tables, "seen_": append([]string{"GRANT pg_read_all_stats"}, tables...)} {
		url := p.asRole(t, name, grants...)
		session(t, url, "own", "BEGIN", "SELECT 1")
		s, err := opened(t, url, buffer.SupervisorPolicy{}).Status(t.Context())
		check(t, err)
		if hidden := name == "hidden_"; s.TransactionsHidden != hidden || (s.OldestTransaction == 0) != hidden {
			t.Errorf("%s: the oldest transaction is %v old, hidden: %t", name, s.OldestTransaction, s.TransactionsHidden)
		}
	}
}
