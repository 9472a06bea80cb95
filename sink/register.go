package sink

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"
)

// Driver configures and opens a sink of a scheme that is not built in; see [Register].
//
// A Driver belongs to one sink of the configuration. Its methods are called by one goroutine at a time, and must not
// panic.
type Driver interface {
	// Settings returns the keys that the sink has in relay.yaml besides url. It is called more than once, also of a Driver
	// whose sink has another scheme, and returns the same settings each time: their Into point to fields of the Driver.
	Settings() []Setting
	// Open makes a sink of the settings, whose values are set by then. It checks what involves the URL or several
	// settings, and connects to nothing: `relay check` calls it as well. Each call makes a sink of its own, which the relay
	// closes. The error is reported at the place of url in the file, as in "pg.url is ...; expected ...": name the setting, what
	// is wrong and what was expected, without secrets.
	Open(o Options) (Sink, error)
}

// Options are what a sink is opened with, besides its settings.
type Options struct {
	// URL is the sink's url, with ${...} expanded. It begins with the scheme and "://"; the rest is not checked but for
	// the syntax of a URL, and may have several hosts with commas between them, which net/url rejects.
	URL string
	// Pipeline is the name of the pipeline. Sink is the name of one of several sinks of a pipeline, "" for a single sink.
	// For a dead-letter hook they are those of the pipeline and the sink that it belongs to.
	Pipeline, Sink string
	// Ordered reports whether events of one key must arrive in the order of their ids (order: key). Send then reports an
	// event behind one of its key that was not accepted by a [KeyBlockedError].
	Ordered bool
	// Workers is the maximum number of concurrent Sends of this process.
	Workers int
	// ResendWithin is the longest time after an unfinished Send within which the same events may be sent again. A sink that
	// drops duplicates must remember events for longer.
	ResendWithin time.Duration
}

// Setting is one key of a sink in relay.yaml. Values may contain ${NAME} and ${file:/path}.
type Setting struct {
	// Name is the key: a-z, 0-9 and _, beginning with a letter. It may be that of a key of other schemes, but not one that
	// every sink has: url, name, was, match, batch_size, workers, order, retry, dead_letter.
	Name string
	// Into receives the value. Its type decides what the file may say:
	//
	//	*string         text, also empty
	//	*bool           true or false
	//	*int, *int64    an integer, like 1000 or 1_000
	//	*float64        a number
	//	*time.Duration  a duration with its unit, like 30s; not negative
	//	*[]string       a list of texts, none of them empty
	//	*Template       text that is not empty, with {topic} and {key} as placeholders
	//	*TLS            a mapping of ca, cert, key, server_name, insecure_skip_verify
	Into any
	// Default is the value of a key that the file lacks, as it would be written there without quotes; "" leaves Into
	// as it is. Required reports whether the file must have the key. At most one of them is set, and neither for *TLS and
	// *[]string.
	Default  string
	Required bool
	// Secret reports whether the value must never be shown; *string only. The relay replaces it by *** in all of its
	// output, also in texts of servers.
	Secret bool
	// OneOf lists the valid values; *string only. Nil means that any text is valid.
	OneOf []string
	// Expects describes valid values in messages, as it follows the word "expected": "an integer from 1 to 9". "" is a
	// description of the type.
	Expects string
	// Check validates the value that Into has just received; nil accepts every value. Its error is the reason, like "is a
	// reserved name"; it may quote the value, and is not shown for a secret.
	Check func() error
	// Help is a sentence of documentation. `relay` does not print it.
	Help string
}

var registered struct {
	sync.RWMutex
	drivers map[string]func() Driver
}

// builtIn are the schemes of the relay's own drivers.
var builtIn = []string{
	"redis", "rediss", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel",
	"nats", "tls+nats", "http", "https", "postgres", "postgresql", "file", "stdout",
}

var (
	schemeSyntax  = regexp.MustCompile(`^[a-z][a-z0-9+.-]*$`)
	settingSyntax = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	// ofEverySink are the keys that no driver may have.
	ofEverySink = []string{"url", "name", "was", "match", "batch_size", "workers", "order", "retry", "dead_letter"}
)

// Register makes a scheme known to the configuration: a sink, one of several sinks, or a dead-letter hook whose url begins
// with scheme:// is then opened by a Driver that newDriver returns, with the keys that its Settings name. Everything that the
// relay does with a sink, it does with this one: check, doctor, metrics, the status page, retries and dead letters. Package
// cli has the relay's command for a main function of one's own, and the package at the root of this module runs a
// relay.yaml within a program.
//
// Register is called before the configuration is read, from an init function as a rule. newDriver returns a new Driver
// each time, and must be safe for concurrent use. A driver with several schemes is registered once for each.
//
// Like database/sql.Register it panics if a scheme is registered twice. It also panics if the scheme is built in or no
// scheme (lower case letters, digits, "+", "." and "-"), and if a setting breaks a rule of [Setting]: mistakes in the program,
// which no configuration causes.
func Register(scheme string, newDriver func() Driver) {
	if err := checkDriver(scheme, newDriver); err != nil {
		panic(fmt.Sprintf("sink: Register(%q): %v", scheme, err))
	}
	registered.Lock()
	defer registered.Unlock()
	if _, twice := registered.drivers[scheme]; twice {
		panic(fmt.Sprintf("sink: Register(%q): the scheme is registered already", scheme))
	}
	if registered.drivers == nil {
		registered.drivers = map[string]func() Driver{}
	}
	registered.drivers[scheme] = newDriver
}

// Schemes returns the schemes that were registered, sorted; those of the relay's own drivers are not among them. The
// caller owns the slice.
func Schemes() []string {
	registered.RLock()
	defer registered.RUnlock()
	return slices.Sorted(maps.Keys(registered.drivers))
}

// NewDriver returns a new Driver of a registered scheme, and nil for any other scheme.
func NewDriver(scheme string) Driver {
	registered.RLock()
	defer registered.RUnlock()
	if newDriver := registered.drivers[scheme]; newDriver != nil {
		return newDriver()
	}
	return nil
}

func checkDriver(scheme string, newDriver func() Driver) error {
	switch {
	case !schemeSyntax.MatchString(scheme):
		return errors.New("this is no scheme; expected lower case letters, digits, +, . and -")
	case slices.Contains(builtIn, scheme):
		return errors.New("the scheme is built in")
	case newDriver == nil:
		return errors.New("newDriver is nil")
	}
	names := map[string]bool{}
	for _, s := range newDriver().Settings() {
		if err := s.check(); err != nil {
			return fmt.Errorf("setting %q: %w", s.Name, err)
		}
		if names[s.Name] {
			return fmt.Errorf("setting %q: there are two of it", s.Name)
		}
		names[s.Name] = true
	}
	return nil
}

func (s Setting) check() error {
	switch {
	case !settingSyntax.MatchString(s.Name):
		return errors.New("this is no name; expected lower case letters, digits and _")
	case slices.Contains(ofEverySink, s.Name):
		return errors.New("every sink has a key of this name")
	case s.Required && s.Default != "":
		return errors.New("it is required and has a default; expected one of them")
	}
	text := false
	switch s.Into.(type) {
	case *string:
		text = true
	case *bool, *int, *int64, *float64, *time.Duration, *Template:
	case *[]string, *TLS:
		if s.Required || s.Default != "" {
			return fmt.Errorf("its Into is a %T, which cannot be required or have a default", s.Into)
		}
	default:
		return fmt.Errorf("its Into is a %T; expected a type that the documentation of Setting lists", s.Into)
	}
	if !text && (s.Secret || s.OneOf != nil) {
		return fmt.Errorf("its Into is a %T; expected *string, because Secret or OneOf is set", s.Into)
	}
	return nil
}
