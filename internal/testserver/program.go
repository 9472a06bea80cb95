package testserver

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// searchDirs are directories besides PATH where packages install server programs. install.sh
// has the same list.
var searchDirs = []string{
	"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin",
	"/opt/homebrew/bin", "/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/bin", "/usr/local/opt/postgresql*/bin",
	"/home/linuxbrew/.linuxbrew/bin", "/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
	"/opt/homebrew/lib/ruby/gems/*/bin", "/usr/local/lib/ruby/gems/*/bin", "/usr/sbin", "/usr/local/sbin",
}

// program returns the path of an installed program, the newest if there are several. It does
// not resolve links, because some programs depend on the name they are called by.
func program(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return filepath.Abs(path)
	}
	for _, dir := range searchDirs {
		found, err := filepath.Glob(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		if len(found) > 0 {
			return slices.MaxFunc(found, func(a, b string) int { return cmp.Compare(version(a), version(b)) }), nil
		}
	}
	return "", fmt.Errorf("%s is not installed; run `make servers`, which installs what the tests need", name)
}

var number = regexp.MustCompile(`\d+`)

// version is the first number in a path; 0 if there is none.
func version(path string) int {
	n, err := strconv.Atoi(number.FindString(path))
	if err != nil {
		return 0
	}
	return n
}

// FreePort returns a port of 127.0.0.1 for a server; the port plus 10000 is free too, for a
// Redis cluster's bus. Both are below the range for outgoing connections. So nothing takes
// the port while the server is stopped, and no client connects to itself.
func FreePort() (int, error) {
	var err error
	for range 100 {
		port := 12000 + rand.IntN(10000)
		if err = tryPort(port); err != nil {
			continue
		}
		if err = tryPort(port + 10000); err == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port on 127.0.0.1: %w", err)
}

func tryPort(port int) error {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return err
	}
	return l.Close()
}
