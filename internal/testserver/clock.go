package testserver

import (
	"errors"
	"fmt"
	"path/filepath"
)

// ClockOffset formats an offset in seconds for [PostgresOptions].Clock.
func ClockOffset(seconds int) string { return fmt.Sprintf("%+d\n", seconds) }

// fakeClock returns the environment in which a program of libc reads its clock through
// libfaketime. Its monotonic clock stays true, as when an administrator sets the time.
func fakeClock(file string) ([]string, error) {
	found, err := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, errors.New("libfaketime is not installed; run make servers")
	}
	return []string{
		"LD_PRELOAD=" + found[0], "FAKETIME_TIMESTAMP_FILE=" + file, "FAKETIME_NO_CACHE=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_RESET=1",
	}, nil
}
