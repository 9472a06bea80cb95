package testserver

import (
	"cmp"
	"fmt"
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
