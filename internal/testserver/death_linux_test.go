package testserver_test

import (
	"bufio"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
)

func TestStart_ServersEndWithTheirParent(t *testing.T) {
	tempDir(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+childServers)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	testkit.NoError(t, err)
	testkit.NoError(t, cmd.Start())
	var hosts []string
	for lines := bufio.NewScanner(out); len(hosts) < 2 && lines.Scan(); {
		u, err := url.Parse(lines.Text())
		testkit.NoError(t, err)
		hosts = append(hosts, u.Host)
	}
	dial := func(host string) error {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", host)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	for _, host := range hosts {
		testkit.NoError(t, dial(host))
	}
	testkit.NoError(t, cmd.Process.Kill())
	if err := cmd.Wait(); err == nil {
		t.Fatal("the killed process ended without an error")
	}
	if len(hosts) != 2 {
		t.Fatalf("the process printed %d URLs; want 2", len(hosts))
	}
	for _, host := range hosts {
		testkit.Eventually(t, func() error {
			if err := dial(host); err == nil {
				return fmt.Errorf("%s still listens", host)
			}
			return nil
		})
	}
}
