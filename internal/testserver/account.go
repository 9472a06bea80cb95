package testserver

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
)

// account is who a server runs as when the test runs as root, which PostgreSQL
// and PgBouncer refuse.
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
	return nil, errors.New("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody to run it as")
}

// own gives a file or folder to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}

// folder makes a temporary folder that belongs to the account.
func (a *account) folder(name string) (string, error) {
	dir, err := os.MkdirTemp("", "relay-"+name+"-")
	if err != nil {
		return "", err
	}
	if err := a.own(dir); err != nil {
		return "", errors.Join(fmt.Errorf("giving %s to the server: %w", dir, err), os.RemoveAll(dir))
	}
	return dir, nil
}

// write makes a file that belongs to the account and nobody else reads.
func (a *account) write(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return a.own(path)
}
