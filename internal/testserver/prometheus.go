package testserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// PrometheusServer is a Prometheus server.
type PrometheusServer struct {
	// URL is http://host:port.
	URL string

	*process
}

// Prometheus starts a Prometheus server with the files of its folder by name, among them prometheus.yml.
func Prometheus(t testing.TB, files map[string]string) *PrometheusServer {
	t.Helper()
	s := must(startPrometheus(t.Context(), files))(t)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

func startPrometheus(ctx context.Context, files map[string]string) (_ *PrometheusServer, err error) {
	path, err := program("prometheus")
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
	dir, err := as.tempDir("prometheus")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	for name, text := range files {
		if err := as.write(filepath.Join(dir, name), text); err != nil {
			return nil, err
		}
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	s := &PrometheusServer{URL: "http://" + address}
	s.process = &process{
		name: "prometheus", path: path, dir: dir, as: as, stop: syscall.SIGTERM, death: syscall.SIGKILL,
		args: []string{"--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address=" + address, "--enable-feature=exemplar-storage"},
		ready: func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/-/ready", nil)
			if err != nil {
				return err
			}
			answer, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			if answer.StatusCode != http.StatusOK {
				err = fmt.Errorf("prometheus is not ready: %s", answer.Status)
			}
			return errors.Join(err, answer.Body.Close())
		},
	}
	return s, s.Start(ctx)
}

// Promtool returns the command that runs promtool.
func Promtool(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(t.Context(), must(program("promtool"))(t), args...)
}
