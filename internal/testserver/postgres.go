package testserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// PostgresOptions are the options of a PostgreSQL server.
type PostgresOptions struct {
	// Durable turns fsync and full_page_writes on, as in production. Otherwise a crash of
	// the machine, but not of the server, loses data.
	Durable bool
	// Settings are further settings of postgresql.conf, by name.
	Settings map[string]string
	// Clock is a file with the offset of the server's clock, written by [ClockOffset]; "" is
	// the clock of the machine. The server notices a change at once. Linux only.
	Clock string
	// TLS, if it is not nil, has the server speak TLS, and refuse a client certificate of another authority. Those without one are accepted,
	// and so are connections without TLS.
	TLS *PostgresTLS
}

// PostgresTLS has the files that a server needs, in PEM.
type PostgresTLS struct{ CA, Cert, Key string }

// settings copies the files into dir, because the server reads none that others could have written.
func (t *PostgresTLS) settings(as *account, dir string) (map[string]string, error) {
	settings := map[string]string{"ssl": "on"}
	for setting, file := range map[string]string{"ssl_ca_file": t.CA, "ssl_cert_file": t.Cert, "ssl_key_file": t.Key} {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		settings[setting] = filepath.Join(dir, setting+".pem")
		if err := as.write(settings[setting], string(text)); err != nil {
			return nil, err
		}
	}
	return settings, nil
}

// PostgresServer is a PostgreSQL server. Its methods are safe for concurrent use.
type PostgresServer struct {
	// URL of the database "postgres" as the superuser, with its password.
	URL string

	*process
}

// StartPostgres creates a PostgreSQL cluster and starts it. ctx limits the start only. The
// caller calls Close.
func StartPostgres(ctx context.Context, opts PostgresOptions) (_ *PostgresServer, err error) {
	path, err := program("postgres")
	if err != nil {
		return nil, err
	}
	as, err := unprivileged()
	if err != nil {
		return nil, err
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	dir, err := as.tempDir("postgres")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	password := "secret-" + rand.Text()
	data := filepath.Join(dir, "data")
	if err := initdb(ctx, path, dir, data, password, as); err != nil {
		return nil, err
	}

	settings := map[string]string{
		"listen_addresses":          "127.0.0.1",
		"port":                      strconv.Itoa(port),
		"unix_socket_directories":   "",
		"max_connections":           "200",
		"max_prepared_transactions": "10",
	}
	if !opts.Durable {
		settings["fsync"], settings["full_page_writes"] = "off", "off"
	}
	if opts.TLS != nil {
		files, err := opts.TLS.settings(as, dir)
		if err != nil {
			return nil, err
		}
		maps.Copy(settings, files)
	}
	for name, value := range opts.Settings {
		settings[name] = value
	}
	args := []string{"-D", data}
	for name, value := range settings {
		args = append(args, "-c", name+"="+value)
	}

	u := url.URL{
		Scheme: "postgres", User: url.UserPassword("relay", password),
		Host: "127.0.0.1:" + strconv.Itoa(port), Path: "/postgres",
	}
	s := &PostgresServer{URL: u.String(), process: &process{
		name: "postgres", path: path, args: args, dir: dir, as: as,
		stop:  syscall.SIGINT,  // fast shutdown
		death: syscall.SIGQUIT, // immediate shutdown, which ends its children and frees shared memory
	}}
	s.ready = s.ping
	if opts.Clock != "" {
		if s.env, err = fakeClock(opts.Clock); err != nil {
			return nil, err
		}
	}
	return s, s.Start(ctx)
}

func initdb(ctx context.Context, postgres, dir, data, password string, as *account) error {
	path, err := filepath.EvalSymlinks(postgres) // initdb is next to the resolved program
	if err != nil {
		return err
	}
	pwfile := filepath.Join(dir, "password")
	if err := as.write(pwfile, password); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(path), "initdb"),
		"--pgdata="+data, "--username=relay", "--pwfile="+pwfile, "--auth=scram-sha-256",
		"--encoding=UTF8", "--locale=C", "--no-sync")
	cmd.Dir = dir
	cmd.SysProcAttr = attributes(as, syscall.SIGKILL)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return os.Remove(pwfile)
}

func (s *PostgresServer) ping(ctx context.Context) error {
	return withConn(ctx, s.URL, func(conn *pgx.Conn) error { return conn.Ping(ctx) })
}

// NewDatabase creates an empty database and returns its URL.
func (s *PostgresServer) NewDatabase(ctx context.Context) (string, error) {
	return createDatabase(ctx, s.URL, "")
}

// createDatabase creates a database, empty or as a copy of the database template, and returns
// its URL.
func createDatabase(ctx context.Context, serverURL, template string) (string, error) {
	u, err := url.Parse(serverURL)
	if err != nil {
		return "", errors.New("RELAY_TEST_POSTGRES_URL is not a URL") // url.Parse's error contains the password
	}
	name := "relay_test_" + rand.Text()
	u.Path = "/" + name
	create := "CREATE DATABASE " + pgx.Identifier{name}.Sanitize()
	if template != "" {
		create += " TEMPLATE " + pgx.Identifier{template}.Sanitize()
	}
	return u.String(), withConn(ctx, serverURL, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, create)
		return err
	})
}

// dropDatabase drops a database of createDatabase, even if it has connections.
func dropDatabase(ctx context.Context, serverURL, databaseURL string) error {
	u, err := url.Parse(databaseURL)
	if err != nil {
		return err
	}
	return withConn(ctx, serverURL, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "DROP DATABASE "+pgx.Identifier{u.Path[1:]}.Sanitize()+" WITH (FORCE)")
		return err
	})
}

func withConn(ctx context.Context, databaseURL string, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	return errors.Join(f(conn), conn.Close(ctx))
}
