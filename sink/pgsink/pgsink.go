package pgsink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Config is the configuration of a Sink.
type Config struct {
	// URL is postgres://user:password@host/database?table=NAME, with libpq's parameters besides table, which is required:
	// "inbox" or "schema.inbox".
	URL string
	// TLS is for all connections. If it is not zero, they use TLS whatever sslmode says.
	TLS sink.TLS
	// Connections is how many batches are sent at once; 0 means 4.
	Connections int
}

// Sink inserts batches into a table. It is safe for concurrent use.
type Sink struct {
	table  string // as in the URL
	server string // for errors: host, database and table
	pool   *pgxpool.Pool
	// layout is what the last look-up found; nil if the next Send must look.
	layout atomic.Pointer[layout]
}

var (
	_ sink.Sink      = (*Sink)(nil)
	_ sink.Previewer = (*Sink)(nil)
	_ sink.Warner    = (*Sink)(nil)
	_ sink.Informer  = (*Sink)(nil)
)

const (
	connectTimeout = 10 * time.Second
	idleTimeout    = 5 * time.Minute
)

// A connection whose peer is silent is probed and closed if the peer does not answer.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

var errURL = errors.New("url is not that of a table; expected postgres://user:password@host/database?table=inbox")

// New returns a sink that is not connected yet. The error is about the configuration and contains no secret.
func New(c Config) (*Sink, error) {
	s, err := newSink(c)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL sink: %w", err)
	}
	return s, nil
}

func newSink(c Config) (*Sink, error) {
	text, table, err := cutTable(c.URL)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, errURL // err may quote the URL
	}
	one := pool.ConnConfig
	if c.TLS != (sink.TLS{}) {
		if err := secure(&one.Config, c.TLS); err != nil {
			return nil, err
		}
	}
	if one.ConnectTimeout == 0 {
		one.ConnectTimeout = connectTimeout
	}
	one.DialFunc = (&net.Dialer{KeepAliveConfig: keepAlive}).DialContext
	if one.RuntimeParams["application_name"] == "" {
		one.RuntimeParams["application_name"] = "relay"
	}
	pool.MaxConns = int32(min(cmp.Or(c.Connections, 4), 10_000)) + 1 //nolint:gosec // bounded; one for Check
	pool.MinConns, pool.MaxConnIdleTime = 0, idleTimeout
	s := &Sink{table: table, server: fmt.Sprintf("postgres %s/%s %s", one.Host, one.Database, table)}
	s.pool, err = pgxpool.NewWithConfig(context.Background(), pool) // connects to nothing
	return s, err
}

// cutTable takes the parameter table out of a URL, which pgx would send to the server.
func cutTable(text string) (rest, table string, err error) {
	base, parameters, _ := strings.Cut(text, "?") // net/url does not parse several hosts
	query, err := url.ParseQuery(parameters)
	if err != nil || !strings.HasPrefix(base, "postgres://") && !strings.HasPrefix(base, "postgresql://") {
		return "", "", errURL
	}
	table = query.Get("table")
	if _, name, ok := buffer.SplitTable(table); !ok || name == "" {
		return "", "", errURL
	}
	query.Del("table")
	if len(query) > 0 {
		base += "?" + query.Encode()
	}
	return base, table, nil
}

// secure makes all connections use TLS.
func secure(c *pgconn.Config, t sink.TLS) error {
	settings, err := t.Client()
	if err != nil {
		return err
	}
	settingsOf := func(host string) *pgconn.FallbackConfig {
		own := settings.Clone()
		own.ServerName = cmp.Or(own.ServerName, host)
		return &pgconn.FallbackConfig{TLSConfig: own}
	}
	c.TLSConfig = settingsOf(c.Host).TLSConfig
	seen := map[string]bool{net.JoinHostPort(c.Host, fmt.Sprint(c.Port)): true}
	hosts := c.Fallbacks
	c.Fallbacks = nil
	for _, f := range hosts { // sslmode=prefer has each host twice
		if at := net.JoinHostPort(f.Host, fmt.Sprint(f.Port)); !seen[at] {
			seen[at] = true
			c.Fallbacks = append(c.Fallbacks, &pgconn.FallbackConfig{Host: f.Host, Port: f.Port, TLSConfig: settingsOf(f.Host).TLSConfig})
		}
	}
	return nil
}

// Send implements sink.Sink. Its error is an outage, or a rejection of the whole batch: the statement inserts all events or none.
func (s *Sink) Send(ctx context.Context, b *buffer.Batch) error {
	if err := ctx.Err(); err != nil {
		return sink.Unavailable(err)
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return s.outage(err)
	}
	defer conn.Release()
	t := s.layout.Load()
	if t == nil {
		if t, err = s.lookUp(ctx, conn.Conn().PgConn()); err != nil {
			return s.lost(conn, err)
		}
	}
	rows, rejected := t.rows(b)
	if rows.len() == 0 {
		return sink.NewBatchError(rejected)
	}
	if rows.dead && !t.has("dead_letter") {
		return s.outage(fmt.Errorf("table %s has no column dead_letter, for the reasons of dead letters; run: ALTER TABLE %s ADD COLUMN dead_letter json", t.name, t.name))
	}
	if err := t.insert(ctx, conn.Conn(), rows); err != nil {
		return s.lost(conn, err)
	}
	return sink.NewBatchError(rejected)
}

// lost classifies an error, and forgets what it may have made wrong: the layout, and connections to a server that takes no writes.
func (s *Sink) lost(conn *pgxpool.Conn, err error) error {
	s.layout.Store(nil)
	if leaves(err) {
		s.pool.Reset()
	}
	return fmt.Errorf("%s: %w", s.server, classify(err))
}

func (s *Sink) outage(err error) error {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		err = withCause(err, refused.Code)
	}
	return fmt.Errorf("%s: %w", s.server, sink.Unavailable(sink.ExplainTLS(withoutURL(err))))
}

// Check implements sink.Sink: the table exists and fits, the server takes writes, and the role may insert.
func (s *Sink) Check(ctx context.Context) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return s.outage(err)
	}
	defer conn.Release()
	if _, err := s.lookUp(ctx, conn.Conn().PgConn()); err != nil {
		return s.lost(conn, err)
	}
	return nil
}

// Close implements sink.Sink.
func (s *Sink) Close() error {
	s.pool.Close()
	return nil
}

// Preview implements sink.Previewer. It connects to nothing, and shows the rows as envelopes, one a line.
func (s *Sink) Preview(_ context.Context, b *buffer.Batch) ([]sink.PreparedMessage, error) {
	var (
		lines    []byte
		events   []int
		rejected []sink.EventError
	)
	for i := range b.Events {
		if err := sink.CheckHeaders(&b.Events[i]); err != nil {
			rejected = append(rejected, sink.EventError{Index: i, Err: err})
			continue
		}
		lines, events = sink.AppendLine(lines, b, i), append(events, i)
	}
	err := sink.NewBatchError(rejected)
	if len(events) == 0 {
		return nil, err
	}
	return []sink.PreparedMessage{{Summary: "INSERT INTO " + s.table + " ON CONFLICT (id) DO NOTHING", Body: lines, Events: events}}, err
}
