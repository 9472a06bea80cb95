package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/introspect"
	"github.com/outboxrelay/relay/internal/scaffold"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// introspectTimeout limits the reading of a database's catalog.
const introspectTimeout = 30 * time.Second

// initFlags are the flags of init. An empty one is a question on a terminal.
type initFlags struct {
	source, table, name, preset, output string
	sinks                               []string
	batchSize                           string
	force, yes                          bool
	// others are tables that may hold events too, if the table was chosen for the user.
	others []string
}

func (a *app) initCommand() *cobra.Command {
	var f initFlags
	c := &cobra.Command{
		Use:   "init",
		Short: "Inspect a database, ask a few questions, write a relay.yaml",
		Long: `Init writes a working relay.yaml with comments, from a table of your database to a
sink. On a terminal it asks for what the flags do not say. It reads the database's
catalog to propose what to send, and lists it: columns whose names suggest secrets,
such as password_digest, are left out. It counts what the newest 1000 rows of the
table say in columns that may delay or mark them, and warns of it. It changes
nothing there, and sends nothing.

The file never contains a URL or a secret. It names environment variables:
` + scaffold.SourceVariable + `, ` + scaffold.SinkVariable + ` and those of the sink's API.`,
		Example: `  relay init
  relay init --source "$DATABASE_URL" --table contact_activity_events \
    --sink https://api.hubapi.com/crm/v3/objects/contacts/batch/upsert
  relay init --source "$DATABASE_URL" -y
  relay init --source "$DATABASE_URL" --sink redis://cache:6379/0 --sink nats://broker:4222`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.init(c.Context(), &f) },
	}
	flags := c.Flags()
	flags.StringVar(&f.source, "source", "", "database URL: postgres://user:password@host/database, sqlite:///path.db (default $"+scaffold.SourceVariable+")")
	flags.StringVar(&f.table, "table", "", "table of events: the relay's own outbox_events, or a custom table")
	flags.StringVar(&f.preset, "preset", "", "layout of a custom table, if it is a known one, like debezium")
	flags.StringArrayVar(&f.sinks, "sink", nil, "sink URL: redis://, nats://, https://, file:///path or stdout: (default $"+scaffold.SinkVariable+"); repeat the flag for several sinks")
	flags.StringVar(&f.name, "name", "", "pipeline name (default the table's)")
	flags.StringVar(&f.batchSize, "batch-size", "", fmt.Sprintf("events in a request, for an HTTP API without a recipe (default %d)", scaffold.DefaultBatchSize))
	flags.StringVarP(&f.output, "output", "o", "relay.yaml", "file to write")
	flags.BoolVar(&f.force, "force", false, "overwrite an existing file")
	flags.BoolVarP(&f.yes, "yes", "y", false, "ask nothing, use what would be proposed")
	return c
}

func (a *app) init(ctx context.Context, f *initFlags) error {
	q := &questions{}
	if isTerminal(os.Stdin) && isTerminal(a.stderr) && !f.yes {
		q = a.newQuestions(os.Stdin)
	}
	f.source = cmp.Or(f.source, os.Getenv(scaffold.SourceVariable))
	f.sinks = slices.DeleteFunc(f.sinks, func(url string) bool { return url == "" })
	if url := os.Getenv(scaffold.SinkVariable); len(f.sinks) == 0 && url != "" {
		f.sinks = []string{url}
	}
	if err := f.missing(q); err != nil {
		return err
	}
	if _, err := os.Lstat(f.output); err == nil && !f.force {
		return errExists(f.output)
	}
	d := scaffold.Draft{File: f.output}
	catalog, err := a.askSource(ctx, q, f, &d)
	if err != nil {
		return err
	}
	if err := a.askTable(q, f, &d, catalog); err != nil {
		return err
	}
	sink, err := a.askSink(q, f, &d, catalog)
	if err != nil {
		return err
	}
	if err := askBatchSize(q, f, &d); err != nil {
		return err
	}
	if err := askName(q, f, &d); err != nil {
		return err
	}
	inspectValues(ctx, &d)
	text := d.Text()
	cfg, err := validateDraft(&d, text)
	if err != nil {
		return err
	}
	if err := writeNewFile(f.output, text, f.force); err != nil {
		return err
	}
	_, err = io.WriteString(a.stdout, nextSteps(&d, catalog, sink, f.others, cfg.Pipelines[0].Source.Custom, a.redact))
	return err
}

// missing reports the flags that are required if init cannot ask.
func (f *initFlags) missing(q *questions) error {
	var names []string
	if f.source == "" {
		names = append(names, "--source")
	}
	if len(f.sinks) == 0 && !f.yes {
		names = append(names, "--sink")
	}
	if q.enabled() || names == nil {
		return nil
	}
	return usage("init asks questions on a terminal only; expected %s", strings.Join(names, " and "))
}

// askSource asks for the database and reads its catalog.
func (a *app) askSource(ctx context.Context, q *questions, f *initFlags, d *scaffold.Draft) (catalog *introspect.Database, err error) {
	err = q.ask(question{
		flag: "--source", given: f.source, text: "Database: postgres://user:password@host/database or sqlite:///path.db",
	}, func(answer string) error {
		answer = sqliteURL(answer)
		p, err := a.parseURLs(answer, "stdout:")
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, introspectTimeout)
		defer cancel()
		d.Source.Driver, d.Source.URL = p.Source.Driver, answer
		catalog, err = introspect.Open(ctx, p.Source.Driver, answer)
		return err
	})
	return catalog, err
}

// inspectValues looks at the newest rows of a custom table.
func inspectValues(ctx context.Context, d *scaffold.Draft) {
	probes := d.Probes()
	if probes == nil || d.Source.Table.Unreadable() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, introspectTimeout)
	defer cancel()
	counts, err := introspect.Count(ctx, d.Source.Driver, d.Source.URL, d.Source.Sample(probes))
	if err != nil {
		d.Values = []scaffold.Notice{{Text: "The values in the newest rows could not be looked at: " + err.Error()}}
		return
	}
	d.Values = scaffold.Notices(probes, counts)
}

// sqliteURL returns the URL of an existing file, and any other answer as it is.
func sqliteURL(answer string) string {
	if info, err := os.Stat(answer); err != nil || !info.Mode().IsRegular() {
		return answer
	}
	path, err := filepath.Abs(answer)
	if err != nil {
		return answer
	}
	return "sqlite://" + (&url.URL{Path: path}).EscapedPath()
}

// askSink asks for the sink. The result prints without secrets. A word of its path that is the name of a table or a column is none.
func (a *app) askSink(q *questions, f *initFlags, d *scaffold.Draft, catalog *introspect.Database) (shown string, err error) {
	names := catalog.Names()
	if len(f.sinks) > 1 {
		var all []string
		for _, url := range f.sinks {
			p, err := a.parseURLs("sqlite:///p", url, names...)
			if err != nil {
				return "", err
			}
			all = append(all, p.Sink.URL.String())
		}
		d.Sinks = f.sinks
		return strings.Join(all, ", "), nil
	}
	err = q.ask(question{
		flag: "--sink", given: strings.Join(f.sinks, ""), proposed: "stdout:",
		text: "Sink: redis://host:6379/0, nats://host:4222, https://host/path, file:///path,\nor stdout: to print the events",
	}, func(answer string) error {
		p, err := a.parseURLs("sqlite:///p", answer, names...)
		if err != nil {
			return err
		}
		d.Sink, shown = answer, p.Sink.URL.String()
		return nil
	})
	return shown, err
}

// parseURLs parses the URLs as a configuration does. From then on their secrets are redacted, but for the names that are shown.
func (a *app) parseURLs(source, sink string, shown ...string) (*config.Pipeline, error) {
	env := map[string]string{"SOURCE": source, "SINK": sink}
	parse := func(source, sink string) (*config.Config, error) {
		return config.Parse("relay.yaml", []byte("pipelines:\n  - name: p\n    source: {url: "+strconv.Quote(source)+"}\n    sink: {url: "+strconv.Quote(sink)+"}\n"),
			func(name string) (string, bool) { value, set := env[name]; return value, set })
	}
	// The errors of an expanded URL quote nothing of it.
	cfg, err := parse("${SOURCE}", "${SINK}")
	var wrong config.Errors
	if errors.As(err, &wrong) {
		return nil, usage("%s", wrong[0].Text)
	}
	if err != nil {
		return nil, err
	}
	// A literal URL shows the words of its path.
	literal := func(url string) string { return strings.ReplaceAll(url, "${", "$${") }
	if written, err := parse(literal(source), literal(sink)); err == nil {
		cfg = written
	}
	before, redact := a.redact, cfg.Redactor(shown...)
	a.redact = func(text string) string { return redact(before(text)) }
	return &cfg.Pipelines[0], nil
}

// maxRequestEvents is the largest batch_size that a configuration takes.
const maxRequestEvents = 1_000_000

// askBatchSize asks how many events a request may have, if that is not known.
func askBatchSize(q *questions, f *initFlags, d *scaffold.Draft) error {
	given := f.batchSize
	if !d.NeedsBatchSize() {
		if given != "" {
			return usage("--batch-size is %s; expected an HTTP API without a recipe as the sink", given)
		}
		return nil
	}
	return q.ask(question{
		flag: "--batch-size", given: given, proposed: strconv.Itoa(scaffold.DefaultBatchSize), text: fmt.Sprintf("How many events does a request to the API take at most? (1 to %d)", maxRequestEvents),
	}, func(answer string) error {
		n, err := strconv.Atoi(answer)
		if err != nil || n < 1 || n > maxRequestEvents {
			what := "the number of events"
			if given != "" {
				what = "--batch-size"
			}
			return usage("%s is %s; expected a number from 1 to %d", what, answer, maxRequestEvents)
		}
		d.BatchSize = n
		return nil
	})
}

// askName asks for the name of the pipeline.
func askName(q *questions, f *initFlags, d *scaffold.Draft) error {
	return q.ask(question{
		flag: "--name", given: f.name, proposed: scaffold.NameOf(d.Source.Name), text: "Pipeline name, of a-z, 0-9, _ and -",
	}, func(answer string) error {
		if strings.Trim(answer, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
			what := "--name"
			if f.name == "" {
				what = "the name"
			}
			return usage("%s is %q; expected a name of a-z, 0-9, _ and -", what, answer)
		}
		d.Name = answer
		return nil
	})
}

// validateDraft validates and opens the configuration, as `relay check` does.
func validateDraft(d *scaffold.Draft, text string) (*config.Config, error) {
	env := map[string]string{}
	for _, v := range d.Variables() {
		env[v.Name] = cmp.Or(v.Value, "x")
	}
	cfg, err := config.Parse(d.File, []byte(text), func(name string) (string, bool) {
		value, set := env[name]
		return value, set
	})
	if err != nil {
		return nil, err
	}
	lines, err := cfg.Open(func(string) config.Process { return config.Process{Stdout: io.Discard, Log: discardLog} })
	if err != nil {
		return nil, err
	}
	return cfg, errors.Join(closeAll(lines)...)
}

func errExists(path string) error {
	return usage("file %s exists; expected another file (-o), or --force to overwrite it; to add a pipeline to it, write another file and move the entry over", path)
}

func writeNewFile(path, text string, force bool) (err error) {
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if force {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return errExists(path)
	}
	if err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteString(text)
	return err
}

// nextSteps describes the file, and what to do in the database and the environment before the relay runs. What is not of the
// relay itself is redacted, but not the file's name.
func nextSteps(d *scaffold.Draft, catalog *introspect.Database, sink string, others []string, custom buffer.CustomTable, redact func(string) string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Wrote %s: from %s to %s\n", d.File, redact(d.Source.Name), redact(sink))
	if len(others) > 0 {
		const shown = 10
		list := strings.Join(others[:min(len(others), shown)], ", ")
		if more := len(others) - shown; more > 0 {
			list += fmt.Sprintf(" and %d more", more)
		}
		fmt.Fprintf(&b, "%s\n", wrapped(redact("--table names another table of events; there are also: "+list)))
	}
	b.WriteString(redact(whatIsSent(d, custom)))
	for _, warning := range warnings(d, catalog.Zone) {
		fmt.Fprintf(&b, "\n%s\n", wrapped(redact(warning.Text)))
		if warning.Lines != nil {
			fmt.Fprintf(&b, "\n    %s\n", redact(strings.Join(warning.Lines, "\n    ")))
		}
	}
	if column, fix := d.Source.LocalTime(catalog); fix != "" {
		fmt.Fprintf(&b, "\n%s\n\n    %s;\n", wrapped(redact("Warning: "+column+" has no time zone and is read as UTC, but the database's is "+catalog.Zone+
			". If rows hold local time, as now() writes it, the age and the created_at of events are wrong. If you may change the column, run this (with 'UTC' if rows hold UTC):")), redact(fix))
	}
	if add := d.Source.AddCursor(); add != "" {
		fmt.Fprintf(&b, "\n%s\n\n    %s;\n", wrapped("Its primary key is a uuid: each claim reads the whole table. A growing column prevents that. "+
			"If you may add one, run this, and remove the # before cursor: seq in "+d.File+":"), redact(add))
	}
	if steps := d.Source.Steps(catalog); len(steps) > 0 {
		b.WriteString("\nIn the database:\n")
		for _, step := range steps {
			fmt.Fprintf(&b, "\n  -- %s\n  %s\n", redact(step.Why), redact(step.SQL))
		}
	}
	heading := "\nIn the environment:\n\n"
	for _, v := range d.Variables() {
		if value, set := os.LookupEnv(v.Name); !set || v.Value != "" && v.Value != value {
			fmt.Fprintf(&b, "%s  export %s=...   # %s\n", heading, v.Name, v.What)
			heading = ""
		}
	}
	create := "create the relay's tables"
	if d.Source.IsCustom() && d.Source.Driver == "postgres" {
		create += ", in schema " + scaffold.Schema
	}
	file := d.FileArgument()
	fmt.Fprintf(&b, "\nThen:\n\n  relay migrate -c %s   # %s\n  relay preview -c %s   # see what the next events would send\n  relay run -c %s       # send\n",
		file, create, file, file)
	fmt.Fprintf(&b, "\nThe end of %s says how to add another table.\n", d.File)
	return b.String()
}

// whatIsSent lists the columns of a custom table that are sent, those that are not, and what an API's request leaves out.
func whatIsSent(d *scaffold.Draft, custom buffer.CustomTable) string {
	var b strings.Builder
	sent, unsent, guesses := d.Columns()
	if sent != nil {
		fmt.Fprintf(&b, "\n%s\n", wrapped("sent: "+strings.Join(sent, ", ")))
	}
	for _, guess := range guesses {
		fmt.Fprintf(&b, "%s\n", wrapped(guess))
	}
	if unsent != nil {
		fmt.Fprintf(&b, "%s\n", wrapped("not sent: "+strings.Join(unsent, ", ")+" (the names suggest secrets)"))
	}
	for _, one := range d.Unrequested() {
		if b.Len() == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s\n", wrapped("not sent by "+cmp.Or(one.Sink, "sink")+".request: "+strings.Join(one.What, ", ")))
	}
	if t := d.Source.Table; t != nil && d.Source.Preset != "" {
		names := make([]string, len(t.Columns))
		for i, c := range t.Columns {
			names[i] = c.Name
		}
		if unsent := custom.Unsent(names); unsent != nil {
			fmt.Fprintf(&b, "\n%s\n", wrapped("not sent by the preset: "+strings.Join(unsent, ", ")))
		}
	}
	return b.String()
}

// warnings are about what the API requires, and about custom tables. zone is the database's; "" if it is UTC.
func warnings(d *scaffold.Draft, zone string) []scaffold.Notice {
	var all []scaffold.Notice
	add := func(text string) { all = append(all, scaffold.Notice{Text: text}) }
	for _, warning := range d.Warnings() {
		add("Warning: " + warning)
	}
	if d.TrustsStatus() {
		add("A 2xx answer counts as accepted for all events of its request. If the API's answer names errors for each event, set results (docs/http.md#results).")
	}
	t := d.Source.Table
	if t == nil || !d.Source.IsCustom() {
		return all
	}
	_, stays := d.Source.Stays()
	if stays {
		text := becomes(&d.Source)
		if column, _ := d.Source.Stays(); column != "" && d.Source.Mark == "" {
			text += " That is guessed from the name " + column + ". If it says something else, remove where, done and mark from the file; otherwise the relay writes into it."
		}
		add(text)
	} else {
		add("Each row of " + d.Source.Name + " is an event, and the relay deletes it after delivery.")
	}
	if len(t.ReferredBy) > 0 && !stays {
		add("Warning: " + strings.Join(t.ReferredBy, ", ") + " has a foreign key to the table. It may prevent the deletes, or lose its own rows to them.")
	}
	all = append(all, d.Source.Marks()...)
	all = append(all, d.Source.Ends()...)
	all = append(all, d.Values...)
	all = append(all, d.Source.Gates(d.Values)...)
	if column := d.Source.Delay(); column != "" {
		add("No row is sent before the time in " + column + ": it is source.available_at in the file. If it says something else, remove that line.")
	}
	if column, needs := d.Source.Undelayed(); column != "" {
		add("Warning: " + column + " looks like the time before which a row must not be sent. Rows are sent at once, because source.available_at needs " + needs +
			" (docs/enqueue.md#delayed-events). If it is that time, change the table, or " + d.Source.Due(column, zone) + " (docs/tables.md)." + d.Source.LocalDelay(column, zone))
	}
	if !d.Source.HasAges() {
		one := "If one does"
		if times := d.Source.Times(); times != nil {
			one += " (" + strings.Join(times, ", ") + "?)"
		}
		add("Warning: no column of " + d.Source.Name + " says when a row was inserted, so the age of waiting events is unknown. " +
			one + ", set source.created_at; otherwise: " + d.Source.AddCreated())
	}
	if t.ReusesIDs {
		add("Warning: SQLite uses an id again after a delete, and a sink takes the new event for a duplicate. " +
			"Recreate the table with " + t.Key[0] + " INTEGER PRIMARY KEY AUTOINCREMENT.")
	}
	return all
}
