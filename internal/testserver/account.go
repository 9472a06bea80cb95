package testserver

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
)

// account is the user that a server runs as if the test runs as root, because PostgreSQL and
// PgBouncer refuse to run as root.
type account struct{ uid, gid int }

// unprivileged returns nil unless this process runs as root.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "_postgres", "nobody"} {
		u, err := user.Lookup(name)
		if errors.As(err, new(user.UnknownUserError)) {
			continue
		}
		if err != nil {
			return nil, err
		}
		uid, errUID := strconv.Atoi(u.Uid)
		gid, errGID := strconv.Atoi(u.Gid)
		return &account{uid, gid}, errors.Join(errUID, errGID)
	}
	return nil, errors.New("PostgreSQL refuses to run as root, and no user postgres, _postgres or nobody exists")
}

// chown makes the account the owner of a file or directory.
func (a *account) chown(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}

// tempDir creates a temporary directory that the account owns.
func (a *account) tempDir(name string) (string, error) {
	dir, err := os.MkdirTemp("", "relay-"+name+"-")
	if err != nil {
		return "", err
	}
	if err := a.chown(dir); err != nil {
		return "", errors.Join(fmt.Errorf("changing the owner of %s: %w", dir, err), os.RemoveAll(dir))
	}
	return dir, nil
}

// write creates a file that only the account can read.
func (a *account) write(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return a.chown(path)
}
