//go:build slim

package cli

import "errors"

func sqliteSchema(string, bool) (string, error) {
	return "", errors.New("relay was built without SQLite (-tags slim); use the full build")
}

func (*app) demo(int, int, bool, bool) error {
	return errors.New("relay was built without the demo's SQLite and NATS server (-tags slim); use the full build")
}
