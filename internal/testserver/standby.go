package testserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Standby starts a standby of the server for one test, which may promote it. From then on the
// primary's commits wait for the standby, unless the session's settings say otherwise.
func Standby(t testing.TB, primary *PostgresServer) *PostgresServer {
	t.Helper()
	s := must(StartStandby(t.Context(), primary))(t)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

// StartStandby copies a running server's cluster and starts the copy as its standby, with the
// same settings on a port of its own. ctx limits the start only. The caller calls Close.
func StartStandby(ctx context.Context, primary *PostgresServer) (_ *PostgresServer, err error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	dir, err := primary.as.tempDir("postgres")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	path, err := filepath.EvalSymlinks(primary.path)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	// pg_basebackup ignores the URL's path.
	backup := exec.CommandContext(ctx, filepath.Join(filepath.Dir(path), "pg_basebackup"),
		"--dbname="+primary.URL, "--pgdata="+data, "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
	backup.Dir = dir
	backup.SysProcAttr = attributes(primary.as, syscall.SIGKILL)
	if out, err := backup.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("pg_basebackup: %w\n%s", err, out)
	}
	u, err := url.Parse(primary.URL)
	if err != nil {
		return nil, err
	}
	u.Host = "127.0.0.1:" + strconv.Itoa(port)
	args := make([]string, 0, len(primary.args))
	for _, a := range primary.args {
		switch {
		case strings.HasPrefix(a, "port="):
			a = "port=" + strconv.Itoa(port)
		case a == filepath.Join(primary.dir, "data"):
			a = data
		}
		args = append(args, a)
	}
	s := &PostgresServer{URL: u.String(), process: &process{
		name: "postgres", path: primary.path, args: args, dir: dir, as: primary.as, stop: primary.stop, death: primary.death,
	}}
	s.ready = s.ping
	if err := s.Start(ctx); err != nil {
		return nil, err
	}
	return s, errors.Join(primary.awaitStandby(ctx), withConn(ctx, primary.URL, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "ALTER SYSTEM SET synchronous_standby_names = '*'")
		if err == nil {
			_, err = conn.Exec(ctx, "SELECT pg_reload_conf()")
		}
		return err
	}))
}

// awaitStandby waits until a standby is streaming.
func (s *PostgresServer) awaitStandby(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return until(ctx, nil, func(ctx context.Context) error {
		return withConn(ctx, s.URL, func(conn *pgx.Conn) error {
			var n int
			err := conn.QueryRow(ctx, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'").Scan(&n)
			if err == nil && n == 0 {
				err = errors.New("no standby is streaming")
			}
			return err
		})
	})
}

// Promote makes a standby the primary, and returns when it accepts writes.
func (s *PostgresServer) Promote(ctx context.Context) error {
	return withConn(ctx, s.URL, func(conn *pgx.Conn) error {
		var done bool
		err := conn.QueryRow(ctx, "SELECT pg_promote()").Scan(&done)
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "40001" { // recovery cancelled the statement that waits for its end
			for done, err = false, nil; err == nil && !done; {
				err = conn.QueryRow(ctx, "SELECT NOT pg_is_in_recovery() FROM pg_sleep(0.1)").Scan(&done)
			}
		}
		if err == nil && !done {
			err = errors.New("the standby was not promoted")
		}
		if err == nil {
			_, err = conn.Exec(ctx, "ALTER SYSTEM RESET synchronous_standby_names")
		}
		if err == nil {
			_, err = conn.Exec(ctx, "SELECT pg_reload_conf()")
		}
		return err
	})
}
