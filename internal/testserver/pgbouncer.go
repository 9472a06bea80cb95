package testserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// PgBouncerServer is a PgBouncer in transaction mode in front of a PostgreSQL
// server.
type PgBouncerServer struct {
	// URL is the server's URL through the pooler.
	URL string

	*process
}

// StartPgBouncer starts PgBouncer in transaction mode, with defaults otherwise, in front of
// the server of a URL, which must contain a password.
func StartPgBouncer(ctx context.Context, postgresURL string) (_ *PgBouncerServer, err error) {
	path, err := program("pgbouncer")
	if err != nil {
		return nil, err
	}
	as, err := unprivileged()
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(postgresURL)
	if err != nil {
		return nil, errors.New("the URL of the PostgreSQL server is not a URL")
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	dir, err := as.tempDir("pgbouncer")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	password, _ := u.User.Password()
	serverPort := u.Port()
	if serverPort == "" {
		serverPort = "5432"
	}
	users, config := filepath.Join(dir, "users.txt"), filepath.Join(dir, "pgbouncer.ini")
	err = errors.Join(
		as.write(users, quoted(u.User.Username())+" "+quoted(password)+"\n"),
		as.write(config, fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = scram-sha-256
auth_file = %s
pool_mode = transaction
`, u.Hostname(), serverPort, port, users)))
	if err != nil {
		return nil, err
	}
	u.Host = "127.0.0.1:" + strconv.Itoa(port)
	s := &PgBouncerServer{URL: u.String()}
	s.process = &process{
		name: "pgbouncer", path: path, args: []string{config}, dir: dir, as: as,
		stop: syscall.SIGTERM, death: syscall.SIGKILL,
		ready: func(ctx context.Context) error {
			return withConn(ctx, s.URL, func(conn *pgx.Conn) error { return conn.Ping(ctx) })
		},
	}
	return s, s.Start(ctx)
}

// quoted quotes a name or password for PgBouncer's list of users.
func quoted(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
