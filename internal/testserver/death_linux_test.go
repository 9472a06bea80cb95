package testserver_test

import (
	"bufio"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

func TestServersDieWithTheProcessThatStartedThem(t *testing.T) {
	tempDir(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), victim+"=yes")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var hosts []string
	for lines := bufio.NewScanner(out); len(hosts) < 2 && lines.Scan(); {
		u, err := url.Parse(lines.Text())
		if err != nil {
			t.Fatal(err)
		}
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
		if err := dial(host); err != nil {
			t.Error(err)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the killed process ended well")
	}
	if len(hosts) != 2 {
		t.Fatalf("the process said where %d servers are, want 2", len(hosts))
	}
	for _, host := range hosts {
		testserver.Eventually(t, func() error {
			if err := dial(host); err == nil {
				return fmt.Errorf("%s still listens", host)
			}
			return nil
		})
	}
}
