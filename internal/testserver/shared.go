package testserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// Main runs a package's tests, stops the shared servers and fails if goroutines are still
// running. Every TestMain calls it.
func Main(m *testing.M) {
	code := m.Run()
	if err := shared.close(); err != nil {
		code = 1
		printErr("stopping the shared test servers: %v", err)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			code = 1
			printErr("%v", err)
		}
	}
	os.Exit(code)
}

func printErr(format string, a ...any) {
	if _, err := fmt.Fprintf(os.Stderr, format+"\n", a...); err != nil {
		os.Exit(2)
	}
}

// sharedServers are used by all tests of a process. The first test that needs one starts it.
type sharedServers struct {
	mu      sync.Mutex
	closers []func() error
	// templates return the names of template databases, by PostgresFrom's name.
	templates map[string]func() (name string, err error)

	postgres, redis, nats func() (url string, err error)
}

var shared = newShared()

func newShared() *sharedServers {
	s := &sharedServers{templates: map[string]func() (string, error){}}
	s.postgres = s.startOnce("RELAY_TEST_POSTGRES_URL", func(ctx context.Context) (string, func() error, error) {
		server, err := StartPostgres(ctx, PostgresOptions{Settings: map[string]string{
			// A fraction of an hour from UTC, because the relay must not depend on a session's
			// time zone.
			"timezone": "Asia/Kathmandu",
		}})
		if err != nil {
			return "", nil, err
		}
		return server.URL, server.Close, nil
	})
	s.redis = s.startOnce("RELAY_TEST_REDIS_URL", func(ctx context.Context) (string, func() error, error) {
		server, err := StartRedis(ctx, "--databases", "1000")
		if err != nil {
			return "", nil, err
		}
		return server.URL, server.Close, nil
	})
	s.nats = s.startOnce("RELAY_TEST_NATS_URL", func(context.Context) (string, func() error, error) {
		dir, err := os.MkdirTemp("", "relay-nats-")
		if err != nil {
			return "", nil, err
		}
		server, err := StartNATS(dir)
		if err != nil {
			return "", nil, errors.Join(err, os.RemoveAll(dir))
		}
		return server.URL, func() error {
			server.Stop()
			return os.RemoveAll(dir)
		}, nil
	})
	return s
}

// startOnce returns a function whose first call starts a server, unless the environment
// variable names one. It also keeps an error, so that later tests need not wait for it again.
func (s *sharedServers) startOnce(env string, start func(context.Context) (string, func() error, error)) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		if url := os.Getenv(env); url != "" {
			return url, nil
		}
		url, stop, err := start(context.Background())
		if err != nil {
			return "", err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closers = append(s.closers, stop)
		return url, nil
	})
}

// template returns the name of a template database. The first call creates it.
func (s *sharedServers) template(name string, prepare func(context.Context, string) error) (string, error) {
	s.mu.Lock()
	create, ok := s.templates[name]
	if !ok {
		create = sync.OnceValues(func() (string, error) { return s.createTemplate(prepare) })
		s.templates[name] = create
	}
	s.mu.Unlock()
	return create()
}

func (s *sharedServers) createTemplate(prepare func(context.Context, string) error) (string, error) {
	ctx := context.Background()
	serverURL, err := s.postgres()
	if err != nil {
		return "", err
	}
	templateURL, err := createDatabase(ctx, serverURL, "")
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	s.closers = append([]func() error{func() error { return dropDatabase(ctx, serverURL, templateURL) }}, s.closers...)
	s.mu.Unlock()
	u, err := url.Parse(templateURL)
	if err != nil {
		return "", err
	}
	return u.Path[1:], prepare(ctx, templateURL)
}

func (s *sharedServers) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, stop := range s.closers {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}
