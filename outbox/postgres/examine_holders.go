package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Who may do what: https://www.postgresql.org/docs/current/predefined-roles.html. A
// role may end the sessions of every role that it is a member of, too; a superuser's
// only a superuser may.
const rightsSQL = `
SELECT quote_ident(current_user),
       pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')::text,
       (pg_has_role(current_user, 'pg_signal_backend', 'USAGE') OR cardinality($1::text[]) > 0 AND NOT EXISTS (
         SELECT FROM pg_roles WHERE rolname = ANY ($1::text[]) AND NOT pg_has_role(current_user, oid, 'USAGE')))::text,
       CASE WHEN (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN '' ELSE
         (SELECT coalesce(string_agg(quote_ident(rolname), ', ' ORDER BY rolname), '')
          FROM pg_roles WHERE rolname = ANY ($1::text[]) AND rolsuper) END,
       (SELECT coalesce(string_agg(quote_ident(name), ', ' ORDER BY name), '')
        FROM unnest($1::text[]) name WHERE name NOT IN (SELECT rolname FROM pg_roles))`

// MissingPrivileges returns what this role would need to do as SupervisorPolicy says and may not, each with
// what is done instead and the GRANT that mends it; nil when nothing is missing.
func (b *Buffer) MissingPrivileges(ctx context.Context, w buffer.SupervisorPolicy) ([]buffer.Finding, error) {
	var found []buffer.Finding
	err := b.db.RoundTrip(ctx, []pg.Step{pg.ReadTx(b.db.StatementTimeout), {
		SQL: rightsSQL, Args: []string{textArray(w.Users)},
		Row: func(v [][]byte) error {
			found = missingRights(w, string(v[0]), string(v[1]) == "true", string(v[2]) == "true", string(v[3]), string(v[4]))
			return nil
		},
	}})
	if err != nil {
		return nil, fmt.Errorf("looking at the role's rights: %w", b.db.ConnectError(err))
	}
	return found, nil
}

// missingRights is about a role that may see or end others or not; superusers and
// unknown are among those that are to be ended.
func missingRights(w buffer.SupervisorPolicy, role string, sees, ends bool, superusers, unknown string) []buffer.Finding {
	var found []buffer.Finding
	warn := func(about, text, mend string) {
		found = append(found, buffer.Finding{Level: buffer.LevelWarning, Subject: about, Text: text, Fix: mend})
	}
	if !sees {
		instead := "; the relay goes by how long it saw them itself"
		if w.TerminateAfter > 0 {
			instead += ", and ends none of them"
		}
		warn("sessions", "role "+role+" does not see what other roles' sessions do, so the age and the state of their transactions are not known, "+
			"and relay_source_oldest_transaction_seconds counts only its own"+instead,
			"GRANT pg_read_all_stats TO "+role)
	}
	if w.TerminateAfter == 0 {
		return found
	}
	const about = "terminate_after"
	if !ends {
		warn(about, "role "+role+" may not end other roles' sessions; their transactions are only logged", "GRANT pg_signal_backend TO "+role)
	}
	if superusers != "" {
		warn(about, "source.supervisor.users names "+superusers+", a superuser, whose sessions role "+role+" may not end; they are only logged",
			"connect as a superuser, or take it out of source.supervisor.users")
	}
	if unknown != "" {
		warn(about, "source.supervisor.users names "+unknown+", and there is no such role", "correct source.supervisor.users")
	}
	return found
}

// sessions tells whether this role sees and may do what it is configured for.
func (e *examination) sessions(ctx context.Context) {
	const about = "sessions"
	found, err := e.b.MissingPrivileges(ctx, e.b.config.Watch)
	if e.failed(about, err) {
		return
	}
	if len(found) == 0 {
		e.fine(about, "the role sees those of all roles")
	}
	e.found = append(e.found, found...)
}

// holders are those as old as long that keep dead rows, or WAL, from being taken away.
func (e *examination) holders(ctx context.Context, long time.Duration) {
	const about = "vacuum horizon"
	all, err := e.b.Blockers(ctx)
	if e.failed(about, err) {
		return
	}
	fine := true
	for i := range all {
		if h := &all[i]; h.Beyond(long) {
			fine = false
			e.warn(about, h.String(), ending(h))
		}
	}
	if fine {
		e.fine(about, "nothing older than "+long.String()+" holds it back")
	}
}

// ending is what ends a holder.
func ending(h *buffer.VacuumBlocker) string {
	there := ""
	if h.Elsewhere {
		there = "in database " + pg.Quote(h.Database) + ": "
	}
	switch {
	case h.Kind == buffer.BlockedByPrepared:
		return there + "ROLLBACK PREPARED " + inQuotes(h.Name)
	case h.Unread():
		return there + "SELECT pg_drop_replication_slot(" + inQuotes(h.Name) + ")"
	case h.Kind == buffer.BlockedBySlot:
		return fmt.Sprintf("look at what reads it (pid %d), and why it does not get on", h.PID)
	case h.Own:
		return "it is a relay's, and ends by itself"
	case h.Backend == "walsender":
		return "end what runs that long on the standby, or set hot_standby_feedback = off there"
	case h.Backend == "autovacuum worker":
		return "it ends by itself"
	}
	return "SELECT pg_terminate_backend(" + pg.Int(int64(h.PID)) + ")"
}

// inQuotes quotes a text as SQL does.
func inQuotes(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// textArray is texts as PostgreSQL reads an array of them.
func textArray(texts []string) string {
	quoted := make([]string, len(texts))
	for i, s := range texts {
		quoted[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(pg.Text(s)) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}
