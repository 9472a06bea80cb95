package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/outboxrelay/relay/internal/config"
)

// errUsage is found in errors in the command line or the configuration.
var errUsage = errors.New("wrong usage")

type usageError struct{ error }

func (u usageError) Unwrap() []error { return []error{u.error, errUsage} }

func usage(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// The exit statuses.
const (
	statusDone   = 0
	statusFailed = 1
	statusUsage  = 2
)

// exit prints the error, if any, and returns the exit status.
func (a *app) exit(err error) int {
	switch {
	case err == nil && !a.failed:
		return statusDone
	case err == nil:
		return statusFailed
	}
	if errs, ok := errors.AsType[config.Errors](err); ok {
		a.printErr(errs.Error())
		return statusUsage
	}
	if !a.started || errors.Is(err, errUsage) {
		a.printErr("relay: " + strings.TrimSpace(err.Error()))
		return statusUsage
	}
	a.fail(err)
	return statusFailed
}

// fail prints an error on one line. The command continues and will exit with 1.
func (a *app) fail(err error) {
	a.failed = true
	a.printErr("relay: " + oneLine(a.forFile(err.Error())))
}

// printErr writes to standard error, without secrets.
func (a *app) printErr(text string) {
	fmt.Fprintln(a.stderr, a.redact(text))
}

// printJSON writes a value to standard output.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
