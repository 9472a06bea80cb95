package doctor

import (
	"context"
	"fmt"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// See https://www.postgresql.org/docs/current/predefined-roles.html. A role may also terminate
// sessions of all roles that it is a member of. Only a superuser may terminate a superuser's.
const privilegesSQL = `
SELECT quote_ident(current_user),
       pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
       (pg_has_role(current_user, 'pg_signal_backend', 'USAGE') OR cardinality($1::text[]) > 0 AND NOT EXISTS (
         SELECT FROM pg_roles WHERE rolname = ANY ($1::text[]) AND NOT pg_has_role(current_user, oid, 'USAGE'))),
       CASE WHEN (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN '' ELSE
         (SELECT coalesce(string_agg(quote_ident(rolname), ', ' ORDER BY rolname), '')
          FROM pg_roles WHERE rolname = ANY ($1::text[]) AND rolsuper) END,
       (SELECT coalesce(string_agg(quote_ident(name), ', ' ORDER BY name), '')
        FROM unnest($1::text[]) name WHERE name NOT IN (SELECT rolname FROM pg_roles))`

// MissingPrivileges returns what the role may not do although the policy needs it, with the GRANT.
func MissingPrivileges(ctx context.Context, db *pg.DB, p buffer.SupervisorPolicy) ([]buffer.Finding, error) {
	var (
		role, superusers, unknown string
		sees, terminates          bool
		users                     pg.Array
		missing                   []buffer.Finding
	)
	for _, u := range p.Users {
		users.Append([]byte(pg.Text(u)))
	}
	err := db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {
		SQL: privilegesSQL, Args: []string{users.String()},
		Row: func(v [][]byte) error {
			role, sees, terminates, superusers, unknown = string(v[0]), pg.ReadBool(v[1]), pg.ReadBool(v[2]), string(v[3]), string(v[4])
			return nil
		},
	}})
	if err != nil {
		return nil, fmt.Errorf("reading the role's privileges: %w", db.ConnectError(err))
	}
	const about = "terminate_after"
	warn := func(about, text, fix string) {
		missing = append(missing, buffer.Finding{Level: buffer.LevelWarning, Subject: about, Text: text, Fix: fix})
	}
	if !sees {
		text := "role " + role + " does not see transactions of other roles' sessions; relay_source_oldest_transaction_seconds is absent, " +
			"and the supervisor measures ages from when it first saw a session"
		level := buffer.LevelOK // a GRANT that many sites do not give
		if p.TerminateAfter > 0 {
			text, level = text+", and terminates none", buffer.LevelWarning
		}
		missing = append(missing, buffer.Finding{Level: level, Subject: aboutSessions, Text: text, Fix: "GRANT pg_read_all_stats TO " + role})
	}
	if p.TerminateAfter == 0 {
		return missing, nil
	}
	if !terminates {
		warn(about, "role "+role+" may not terminate other roles' sessions; they are only logged", "GRANT pg_signal_backend TO "+role)
	}
	if superusers != "" {
		warn(about, "source.supervisor.users names the superuser "+superusers+", whose sessions role "+role+" may not terminate; they are only logged",
			"connect as a superuser, or remove it from source.supervisor.users")
	}
	if unknown != "" {
		warn(about, "source.supervisor.users names "+unknown+", which is no role", "correct source.supervisor.users")
	}
	return missing, nil
}

// aboutSessions is the subject of whether the role sees those of other roles.
const aboutSessions = "sessions"

// privileges adds whether the role can do what the supervisor needs, and reports whether it sees since when other roles' transactions are open.
func (d *diagnosis) privileges(ctx context.Context) (sees bool) {
	const about = aboutSessions
	missing, err := MissingPrivileges(ctx, d.DB, d.Policy)
	if d.failed(about, err) {
		return false
	}
	if len(missing) == 0 {
		d.ok(about, "the role sees those of all roles")
	}
	d.findings = append(d.findings, missing...)
	return !slices.ContainsFunc(missing, func(f buffer.Finding) bool { return f.Subject == about })
}
