package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/introspect"
	"github.com/outboxrelay/relay/internal/scaffold"
)

// surveyTime is how long a database may take to say what tables it has.
const surveyTime = 30 * time.Second

// initFlags are what init is told; what is "" is asked.
type initFlags struct {
	source, table, sink, name, preset, output string
	force, yes                                bool
}

func (a *app) initCommand() *cobra.Command {
	var f initFlags
	c := &cobra.Command{
		Use:   "init",
		Short: "Ask a few questions, look at the database and write a relay.yaml",
		Long: `Init writes a relay.yaml that works, with comments: from a table of your database
to a sink. On a terminal it asks for what no flag says. It reads the database's
catalogue to propose what to send, changes nothing there and sends nothing.

Secrets are not written: the file asks for variables of the environment. A URL may
name them itself, in quotes that keep your shell off: --source '${DATABASE_URL}'.`,
		Example: `  relay init
  relay init --source '${DATABASE_URL}' --table contact_activity_events \
    --sink https://api.hubapi.com/crm/v3/objects/contacts/batch/upsert`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.init(c.Context(), &f) },
	}
	flags := c.Flags()
	flags.StringVar(&f.source, "source", "", "the database's URL: postgres://user:password@host/database, sqlite:///path.db")
	flags.StringVar(&f.table, "table", "", "the table of events: the relay's own outbox_events, or one of yours")
	flags.StringVar(&f.preset, "preset", "", "the shape of your table, if it is a known one, like debezium")
	flags.StringVar(&f.sink, "sink", "", "where to: redis://, nats://, https://, file:///path or stdout:")
	flags.StringVar(&f.name, "name", "", "the pipeline's name (default the table's)")
	flags.StringVarP(&f.output, "output", "o", "relay.yaml", "the file to write")
	flags.BoolVar(&f.force, "force", false, "write it over a file that is there")
	flags.BoolVarP(&f.yes, "yes", "y", false, "ask nothing: take what would be proposed")
	return c
}

func (a *app) init(ctx context.Context, f *initFlags) error {
	q := &questions{}
	if isTerminal(os.Stdin) && isTerminal(a.stderr) && !f.yes {
		q = a.asking(os.Stdin)
	}
	if err := f.missing(q); err != nil {
		return err
	}
	if _, err := os.Lstat(f.output); err == nil && !f.force {
		return usage("%s is there already, --force writes over it, -o writes another file", f.output)
	}
	d := scaffold.Draft{File: f.output}
	var found *introspect.Database
	if err := a.askSource(ctx, q, f, &d, &found); err != nil {
		return err
	}
	if err := a.askTable(q, f, &d, found); err != nil {
		return err
	}
	if err := a.askSink(q, f, &d); err != nil {
		return err
	}
	if err := askName(q, f, &d); err != nil {
		return err
	}
	text := d.Text()
	if err := tryDraft(&d, text); err != nil {
		return err
	}
	if err := writeFile(f.output, text, f.force); err != nil {
		return err
	}
	_, err := io.WriteString(a.stdout, a.redact(whatNext(&d, found)))
	return err
}

// missing names the flags without which nothing can be written, where nobody can be
// asked.
func (f *initFlags) missing(q *questions) error {
	if q.on() {
		return nil
	}
	var names []string
	if f.source == "" && (!f.yes || os.Getenv(databaseVariable) == "") {
		names = append(names, "--source")
	}
	if f.sink == "" {
		names = append(names, "--sink")
	}
	if names == nil {
		return nil
	}
	verb := "was"
	if len(names) > 1 {
		verb = "were"
	}
	return usage("init asks on a terminal only: %s %s expected", strings.Join(names, " and "), verb)
}

// databaseVariable is where many keep the database's URL.
const databaseVariable = "DATABASE_URL"

// askSource finds the database and looks at it.
func (a *app) askSource(ctx context.Context, q *questions, f *initFlags, d *scaffold.Draft, found **introspect.Database) error {
	proposed := ""
	if os.Getenv(databaseVariable) != "" {
		proposed = "${" + databaseVariable + "}"
	}
	return q.ask(question{
		flag: "--source", given: f.source, proposed: proposed,
		text: "The database: postgres://user:password@host/database, sqlite:///path.db,\nor a variable of the environment, ${DATABASE_URL}",
	}, func(answer string) error {
		u, err := urlOf(asSQLite(answer), "source", "the database's URL")
		if err != nil {
			return err
		}
		a.redact = redactor(u, a.redact)
		p, err := tryURL(u.Full, "stdout:")
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, surveyTime)
		defer cancel()
		if *found, err = introspect.Look(ctx, p.Source.Driver, u.Full); err != nil {
			return err
		}
		d.Source.Driver, d.Source.URL = p.Source.Driver, u
		return nil
	})
}

// asSQLite takes the path of a file for the URL it means.
func asSQLite(answer string) string {
	if strings.Contains(answer, "://") || strings.Contains(answer, "${") {
		return answer
	}
	if info, err := os.Stat(answer); err != nil || !info.Mode().IsRegular() {
		return answer
	}
	path, err := filepath.Abs(answer)
	if err != nil {
		return answer
	}
	return "sqlite://" + (&url.URL{Path: path}).EscapedPath()
}

// urlOf is how a URL is written, and what it is.
func urlOf(answer, kind, what string) (scaffold.URL, error) {
	if strings.Contains(answer, "${") {
		u, unset := scaffold.Literal(answer, what, os.LookupEnv)
		if len(unset) > 0 {
			return u, usage("%s.url names ${%s}, which is not set in the environment", kind, unset[0])
		}
		return u, nil
	}
	if u, ok := scaffold.Same(answer, what, os.Environ()); ok {
		return u, nil
	}
	return scaffold.Masked(answer, kind, os.LookupEnv), nil
}

// shortestSecret is the length below which text is not taken out: it would leave nothing
// readable, and keep nothing.
const shortestSecret = 4

// redactor takes the secrets of a URL out of a text, beside what was taken out before.
func redactor(u scaffold.URL, before func(string) string) func(string) string {
	var pairs []string
	for _, v := range u.Variables {
		if len(v.Value) >= shortestSecret {
			pairs = append(pairs, v.Value, "***", url.PathEscape(v.Value), "***", url.QueryEscape(v.Value), "***")
		}
	}
	if at := strings.LastIndex(u.Full, "@"); at >= 0 { // of a URL that is one variable
		if _, password, ok := strings.Cut(strings.SplitN(u.Full[:at], "://", 2)[1], ":"); ok && len(password) >= shortestSecret {
			pairs = append(pairs, password, "***")
		}
	}
	own := strings.NewReplacer(pairs...)
	return func(text string) string { return own.Replace(before(text)) }
}

// tryURL reads the URLs as a configuration would.
func tryURL(source, sink string) (*config.Pipeline, error) {
	env := map[string]string{"SOURCE": source, "SINK": sink}
	cfg, err := config.Parse("relay.yaml", []byte("pipelines:\n  - name: p\n    source: {url: \"${SOURCE}\"}\n    sink: {url: \"${SINK}\"}\n"),
		func(name string) (string, bool) { value, set := env[name]; return value, set })
	var wrong config.Errors
	if errors.As(err, &wrong) {
		return nil, usage("%s", wrong[0].Text)
	}
	if err != nil {
		return nil, err
	}
	return &cfg.Pipelines[0], nil
}

// askName names the pipeline.
func askName(q *questions, f *initFlags, d *scaffold.Draft) error {
	return q.ask(question{
		flag: "--name", given: f.name, proposed: scaffold.NameOf(d.Source.Name),
		text: "A name for the pipeline, made of a-z, 0-9, _ and -",
	}, func(answer string) error {
		if strings.Trim(answer, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" || answer == "" {
			return usage("--name is %q, a name made of a-z, 0-9, _ and - was expected", answer)
		}
		d.Name = answer
		return nil
	})
}

// askSink finds where to.
func (a *app) askSink(q *questions, f *initFlags, d *scaffold.Draft) error {
	return q.ask(question{
		flag: "--sink", given: f.sink, proposed: "stdout:",
		text: "Where the events go: redis://host:6379/0, nats://host:4222, https://host/path,\nfile:///path, or stdout: to see them first",
	}, func(answer string) error {
		u, err := urlOf(answer, "sink", "the sink's URL")
		if err != nil {
			return err
		}
		a.redact = redactor(u, a.redact)
		if _, err := tryURL("sqlite:///p", u.Full); err != nil {
			return err
		}
		d.Sink = u
		return nil
	})
}

// tryDraft reads and opens what was drafted, as relay check does. What the environment
// has to bring is taken as given.
func tryDraft(d *scaffold.Draft, text string) (err error) {
	values := map[string]string{}
	for _, v := range d.Variables() {
		values[v.Name] = v.Value
		if v.Value == "" {
			values[v.Name] = "x"
		}
	}
	cfg, err := config.Parse(d.File, []byte(text), func(name string) (string, bool) {
		value, known := values[name]
		return value, known
	})
	if err != nil {
		return err
	}
	lines, err := cfg.Open(func(string) config.Process { return config.Process{Stdout: io.Discard, Log: discardLog} })
	if err != nil {
		return err
	}
	return errors.Join(closeAll(lines)...)
}

func writeFile(path, text string, force bool) (err error) {
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if force {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return usage("%s is there already, --force writes over it, -o writes another file", path)
	}
	if err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteString(text)
	return err
}
