package pgsink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/pgsink"
)

func batch(first, n int64) *buffer.Batch {
	b := &buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: "orders", PayloadIsJSON: true}
	for id := first; id < first+n; id++ {
		b.Events = append(b.Events, outbox.Event{ID: id, Topic: "orders.created", Payload: fmt.Appendf(nil, `{"order": %d}`, id), CreatedAt: time.UnixMicro(1e15).UTC()})
	}
	return b
}

func (i *inbox) count(t *testing.T, where string) (n int) {
	t.Helper()
	testkit.NoError(t, i.db.QueryRow(t.Context(), "SELECT count(*) FROM inbox WHERE "+where).Scan(&n))
	return n
}

func send(t *testing.T, s *pgsink.Sink, b *buffer.Batch) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return s.Send(ctx, b)
}

// kinds are the kinds of an error that decide what happens to the events.
func kinds(err error) string {
	var all []string
	for name, kind := range map[string]error{"access": sink.ErrAccess, "full": sink.ErrFull, "permanent": sink.ErrPermanent, "poison": sink.ErrMaybePoison, "nothing accepted": sink.ErrNotAccepted} {
		if errors.Is(err, kind) {
			all = append(all, name)
		}
	}
	switch {
	case err == nil:
		return "delivered"
	case errors.As(err, new(*sink.BatchError)):
		return "events"
	case errors.Is(err, sink.ErrUnavailable):
		return strings.Join(append([]string{"outage"}, all...), ", ")
	}
	return strings.Join(append([]string{"rejected"}, all...), ", ")
}

// An event that the table refuses rejects its batch, of which nothing is inserted, so that the relay finds it by halving. The error
// does not quote the row.
func TestSend_RefusedEvent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ddl, payload, want string
	}{
		"check":              {"ALTER TABLE inbox ADD CHECK ((payload->>'order')::int <> 7)", "", "rejected, permanent"},
		"not null":           {"ALTER TABLE inbox ALTER key SET NOT NULL", "", "rejected, permanent"},
		"another key":        {"CREATE UNIQUE INDEX ON inbox (topic)", "", "rejected, permanent"},
		"jsonb takes no NUL": {"ALTER TABLE inbox ALTER payload TYPE jsonb", `{"secret": "s3cret", "nul": "\u0000"}`, "rejected, permanent"},
		"index row size":     {"CREATE INDEX ON inbox ((payload->>'long'))", `{"secret": "s3cret", "long": "` + random(20_000) + `"}`, "rejected, permanent"},
		"a trigger":          {"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.event_id = '7' THEN RAISE 'no'; END IF; RETURN NEW; END $$; CREATE TRIGGER refuse BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION refuse()", "", "rejected"},
		"a foreign key":      {"CREATE TABLE parents (id text PRIMARY KEY); ALTER TABLE inbox ADD FOREIGN KEY (event_id) REFERENCES parents", "", "rejected"},
		"a wrong trigger":    {"CREATE FUNCTION wrong() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM nothing(); RETURN NEW; END $$; CREATE TRIGGER wrong BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION wrong()", "", "outage, nothing accepted"},
		"another column":     {"ALTER TABLE inbox ADD tenant int NOT NULL", "", "rejected, permanent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := newInbox(t, "json")
			i.exec(c.ddl)
			b := batch(1, 10)
			if c.payload != "" {
				b.Events[6].Payload = []byte(c.payload)
			}
			err := send(t, closing(t, i.sinkURL()), b)
			testkit.Equal(t, "the error", kinds(err), c.want)
			if err != nil {
				testkit.Equal(t, "rows", i.count(t, "true"), 0)
				if strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "orders.created") {
					t.Errorf("the error quotes the row: %v", err)
				}
			}
		})
	}
}

// random is text that PostgreSQL cannot compress.
func random(n int) string {
	var text strings.Builder
	for i := 0; text.Len() < n; i++ {
		fmt.Fprintf(&text, "%x", i*2654435761%4294967296)
	}
	return text.String()
}

// Payloads that are not JSON are rejected alone where the column is JSON, before anything is sent.
func TestSend_NotJSON(t *testing.T) {
	t.Parallel()
	i := newInbox(t, "json")
	b := batch(1, 3)
	b.PayloadIsJSON = false
	b.Events[1].Payload, b.Events[2].Headers = []byte("\x00no"), outbox.Headers("[]")
	var rejected *sink.BatchError
	if err := send(t, closing(t, i.sinkURL()), b); !errors.As(err, &rejected) || len(rejected.Events) != 2 || !errors.Is(rejected.Events[0].Err, sink.ErrPermanent) {
		t.Errorf("got %v", err)
	}
	testkit.Equal(t, "rows", i.count(t, "event_id = '1'"), 1)
}

// An id that the database hands out again is another event: it was claimed under another group_id. The same event sent again, in
// parts or as a whole, adds nothing, for as long as its row is there.
func TestSend_ReusedID(t *testing.T) {
	t.Parallel()
	i := newInbox(t, "json")
	s := closing(t, i.sinkURL())
	first, again := batch(1, 10), batch(1, 10)
	part := first.Part([]int{3, 4, 5})
	part.GroupID, part.Origins = buffer.NewGroupID(), append(part.Origins, first.GroupID)
	for _, b := range []*buffer.Batch{first, first, part, again, again} {
		testkit.NoError(t, send(t, s, b))
	}
	testkit.Equal(t, "rows", i.count(t, "true"), 20)
}

// What is wrong with the table is an outage that says what to do, and ends when the table fits.
func TestCheck_Table(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ ddl, want, fix string }{
		"missing":   {"ALTER TABLE inbox RENAME TO other", "relay schema --inbox inbox", "ALTER TABLE other RENAME TO inbox"},
		"no column": {"ALTER TABLE inbox RENAME headers TO h", "no column headers", "ALTER TABLE inbox RENAME h TO headers"},
		"type":      {"ALTER TABLE inbox ALTER created_at TYPE timestamp", "column created_at", "ALTER TABLE inbox ALTER created_at TYPE timestamptz"},
		"no key":    {"ALTER TABLE inbox DROP CONSTRAINT inbox_pkey", "ADD PRIMARY KEY (id)", "ALTER TABLE inbox ADD PRIMARY KEY (id)"},
		"a view":    {"ALTER TABLE inbox RENAME TO other; CREATE VIEW inbox AS SELECT * FROM other", "not a table", "DROP VIEW inbox; ALTER TABLE other RENAME TO inbox"},
		"read-only": {"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$", "read-only", "SET default_transaction_read_only = off; DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET default_transaction_read_only', current_database()); END $$"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := newInbox(t, "json")
			i.exec(c.ddl)
			s := closing(t, i.sinkURL())
			for what, err := range map[string]error{"Check": s.Check(t.Context()), "Send": send(t, s, batch(1, 1))} {
				if !errors.Is(err, sink.ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: got %v, want an outage that says %q", what, err, c.want)
				}
			}
			i.exec(c.fix)
			testkit.Eventually(t, func() error { return send(t, s, batch(1, 1)) })
			testkit.NoError(t, s.Check(t.Context()))
		})
	}
}

// A database may quote the names of types.
func TestCheck_QuotedTypes(t *testing.T) {
	t.Parallel()
	i := newInbox(t, "json")
	i.exec("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET quote_all_identifiers = on', current_database()); END $$")
	s := closing(t, i.sinkURL())
	testkit.NoError(t, s.Check(t.Context()))
	testkit.NoError(t, send(t, s, batch(1, 1)))
}

// A role with INSERT and SELECT (id) is enough. Without them, the events wait.
func TestCheck_Privileges(t *testing.T) {
	t.Parallel()
	i := newInbox(t, "json")
	role := "sink_" + strings.ReplaceAll(buffer.NewGroupID().String(), "-", "")
	i.exec("CREATE ROLE " + role + " LOGIN PASSWORD 's3cret-pw'")
	t.Cleanup(func() {
		_, err := i.db.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+role+"; DROP ROLE "+role)
		testkit.NoError(t, err)
	})
	c, err := pgx.ParseConfig(i.url)
	testkit.NoError(t, err)
	url := fmt.Sprintf("postgres://%s:s3cret-pw@%s:%d/%s?table=inbox", role, c.Host, c.Port, c.Database)
	s := closing(t, url)
	for _, grant := range []string{"INSERT", "SELECT (id)"} {
		err := send(t, s, batch(1, 1))
		if !errors.Is(err, sink.ErrUnavailable) || !errors.Is(err, sink.ErrAccess) || !strings.Contains(err.Error(), "GRANT ") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("before %s: %v", grant, err)
		}
		i.exec("GRANT " + grant + " ON inbox TO " + role)
	}
	testkit.NoError(t, send(t, s, batch(1, 1)))
	testkit.NoError(t, s.Check(t.Context()))
	wrong := closing(t, strings.Replace(url, "s3cret-pw", "s3cret-other", 1))
	if err := wrong.Check(t.Context()); !errors.Is(err, sink.ErrUnavailable) || !errors.Is(err, sink.ErrAccess) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a wrong password: %v", err)
	}
}

// The rows are on disk when Send returns, also where the database says otherwise, and no setting outlasts the transaction: through
// PgBouncer, which gives the connection to others.
func TestSend_PgBouncer(t *testing.T) {
	t.Parallel()
	i := newInbox(t, "json")
	i.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$;
		CREATE TABLE seen (setting text);
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO seen VALUES (current_setting('synchronous_commit') || ' ' || (current_setting('statement_timeout') <> '0')); RETURN NULL; END $$;
		CREATE TRIGGER note AFTER INSERT ON inbox FOR EACH STATEMENT EXECUTE FUNCTION note()`)
	url := testserver.PgBouncer(t, i.url)
	s := closing(t, withTable(url))
	var all sync.WaitGroup
	for n := range int64(4) {
		all.Go(func() {
			for k := range int64(5) {
				if err := send(t, s, batch(1+n*1000+k*100, 100)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	testkit.Equal(t, "rows", i.count(t, "true"), 2000)
	var seen string
	testkit.NoError(t, i.db.QueryRow(t.Context(), "SELECT string_agg(DISTINCT setting, ', ') FROM seen").Scan(&seen))
	testkit.Equal(t, "settings", seen, "on true")
	other := connectTo(t, url)
	var left string
	testkit.NoError(t, other.QueryRow(t.Context(), "SELECT current_setting('statement_timeout')", pgx.QueryExecModeSimpleProtocol).Scan(&left))
	testkit.Equal(t, "statement_timeout of the next client", left, "0")
}

// On a full disk the events wait, and none is refused.
func TestSend_DiskFull(t *testing.T) {
	t.Parallel()
	i := newInbox(t, "json")
	i.exec(`CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			RAISE 'could not extend file "base/1/2": No space left on device' USING ERRCODE = '53100'; END $$;
		CREATE TRIGGER no_space BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION no_space()`)
	s := closing(t, i.sinkURL())
	err := send(t, s, batch(1, 2))
	testkit.Equal(t, "kinds", kinds(err), "outage, full")
	i.exec("DROP TRIGGER no_space ON inbox")
	testkit.NoError(t, send(t, s, batch(1, 2)))
	testkit.Equal(t, "rows", i.count(t, "true"), 2)
}

// A server with a certificate of a private authority. Wrong settings are outages that name the setting.
func TestTLS(t *testing.T) {
	t.Parallel()
	authority, stranger := testkit.NewAuthority(t), testkit.NewAuthority(t)
	cert, key := authority.Issue(t, "127.0.0.1", "inbox.internal")
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{TLS: &testserver.PostgresTLS{CA: authority.CA, Cert: cert, Key: key}})
	i := &inbox{t: t, db: connectTo(t, server.URL)}
	i.exec(pgsink.Schema("inbox"))
	i.exec(`CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			NEW.key := (SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid())::text; RETURN NEW; END $$;
		CREATE TRIGGER note BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION note()`)
	good := sink.TLS{CA: authority.CA}
	good.Cert, good.Key = authority.Issue(t, "relay.internal")
	with := func(change func(*sink.TLS)) sink.TLS {
		changed := good
		change(&changed)
		return changed
	}
	strangerCert, strangerKey := stranger.Issue(t, "relay.internal")
	id := int64(0)
	for name, c := range map[string]struct {
		tls   sink.TLS
		error string
	}{
		"Good":                 {good, ""},
		"NoClientCertificate":  {sink.TLS{CA: authority.CA}, ""},
		"ServerName":           {with(func(c *sink.TLS) { c.ServerName = "inbox.internal" }), ""},
		"AnyServer":            {sink.TLS{InsecureSkipVerify: true}, ""},
		"WrongCA":              {with(func(c *sink.TLS) { c.CA = stranger.CA }), "tls.ca must have"},
		"SystemCAs":            {with(func(c *sink.TLS) { c.CA = "" }), "tls.ca must have"},
		"WrongServerName":      {with(func(c *sink.TLS) { c.ServerName = "other.internal" }), "tls.server_name must be"},
		"BadClientCertificate": {with(func(c *sink.TLS) { c.Cert, c.Key = strangerCert, strangerKey }), "check tls.cert"},
	} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // one inbox
			s, err := pgsink.New(pgsink.Config{URL: withTable(server.URL), TLS: c.tls})
			testkit.NoError(t, err)
			t.Cleanup(func() { testkit.NoError(t, s.Close()) })
			id++
			if c.error == "" {
				testkit.NoError(t, send(t, s, batch(id, 1)))
				testkit.Equal(t, "rows by TLS", i.count(t, fmt.Sprintf("event_id = '%d' AND key = 'true'", id)), 1)
				return
			}
			testkit.Eventually(t, func() error { // by TLS 1.3 the server's alert may come after its reset
				if err := send(t, s, batch(id, 1)); !errors.Is(err, sink.ErrUnavailable) || strings.Count(err.Error(), c.error) != 1 || strings.Contains(err.Error(), "secret-") {
					return fmt.Errorf("got %w; expected an outage that says %q once", err, c.error)
				}
				return nil
			})
		})
	}
}

// A lock that lasts ends with the send's deadline, in the server too: the batch waits.
func TestSend_Locked(t *testing.T) {
	t.Parallel()
	i := newInbox(t, "json")
	s := closing(t, i.sinkURL())
	testkit.NoError(t, send(t, s, batch(1, 1)))
	i.exec("BEGIN; LOCK TABLE inbox")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.Send(ctx, batch(2, 1)); !errors.Is(err, sink.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	i.exec("ROLLBACK")
	testkit.NoError(t, send(t, s, batch(3, 1)))
	testkit.Equal(t, "rows", i.count(t, "event_id = '3'"), 1)
}

// A server that is killed while batches are sent loses none that were delivered, and takes none twice.
func TestSend_ServerKilled(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{})
	create := func(sql string) {
		c := connectTo(t, server.URL)
		_, err := c.Exec(t.Context(), sql)
		testkit.NoError(t, err)
		testkit.NoError(t, c.Close(t.Context()))
	}
	create(pgsink.Schema("inbox"))
	s := closing(t, withTable(server.URL))
	const batches = 200
	var senders sync.WaitGroup
	progress := make(chan struct{}, 4*batches)
	for n := range int64(4) {
		senders.Go(func() {
			for k := range int64(batches) {
				b := batch(1+(n*batches+k)*10, 10)
				testkit.Eventually(t, func() error { return send(t, s, b) })
				progress <- struct{}{}
			}
		})
	}
	for range 2 {
		for range batches {
			<-progress
		}
		testkit.NoError(t, server.Kill())
		testkit.NoError(t, server.Start(t.Context()))
	}
	senders.Wait()
	i := &inbox{t: t, db: connectTo(t, server.URL)}
	testkit.Equal(t, "events", i.count(t, "true"), 4*batches*10)
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	i := newInbox(t, "json") // the tests' server has fsync off
	i.exec("ALTER TABLE inbox SET UNLOGGED")
	s := closing(t, i.sinkURL())
	if got := strings.Join(s.Warnings(t.Context()), "\n"); !strings.Contains(got, "SET LOGGED") || !strings.Contains(got, "fsync") {
		t.Errorf("warnings are %q", got)
	}
	if got := strings.Join(s.Notes(t.Context()), "\n"); !strings.Contains(got, "synchronous_standby_names") {
		t.Errorf("notes are %q", got)
	}
}

func TestNew_InvalidURL(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "mysql://s3cret@h/db?table=inbox", "postgres://u:s3cret@h/db", `postgres://u:s3cret@h/db?table="inbox`, "postgres://u:s3cret@h:x/db?table=inbox", "postgres://u:s3cret@h/db?table=%zz"} {
		if _, err := pgsink.New(pgsink.Config{URL: url}); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", url, err)
		}
	}
	s := closing(t, "postgres://u:p@h1:5432,h2/db?table=app.inbox&target_session_attrs=read-write")
	shown, err := s.Preview(t.Context(), batch(1, 2))
	testkit.NoError(t, err)
	if !strings.Contains(shown[0].Summary, "app.inbox") || len(shown[0].Events) != 2 {
		t.Errorf("preview is %+v", shown)
	}
}
