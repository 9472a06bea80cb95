// Package scaffold writes a relay.yaml with comments: one pipeline from a table to a sink. The file
// names environment variables in place of URLs and credentials, so it never contains a secret.
package scaffold

import (
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/internal/introspect"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// The environment variables that hold the URLs.
const (
	SourceVariable = "RELAY_SOURCE_URL"
	SinkVariable   = "RELAY_SINK_URL"
)

// Schema holds the relay's own tables if the buffer is a custom table on PostgreSQL.
const Schema = "relay"

// Draft is the content of a relay.yaml.
type Draft struct {
	// File is the name of the file, for the commands in its comments.
	File string
	// Name is the name of the pipeline.
	Name   string
	Source Source
	// Sink is the sink's URL, Sinks those of several; nil for a single one. They are not written.
	Sink  string
	Sinks []string
	// Values are warnings about the values in the table.
	Values []Notice
	// BatchSize is the number of events in a request to an API that has no recipe; 0 for the default.
	BatchSize int
}

// Source is the buffer.
type Source struct {
	// Driver is "postgres" or "sqlite".
	Driver string
	// URL is the database's URL. It is not written.
	URL string
	// Name is the name of the table in the configuration.
	Name string
	// Table is the table in the database; nil if `migrate` creates the relay's own table.
	Table *introspect.Table
	// Preset names the table's layout; "" if it is not known or the relay's own.
	Preset string
	// PresetMarks reports whether that marks the rows that were delivered. Otherwise they are deleted.
	PresetMarks bool
	// Mark is the column that the user says a loop marks rows with; "" if it is guessed.
	Mark string
}

// IsCustom reports whether the table is a custom table.
func (s *Source) IsCustom() bool {
	return s.Preset != "" || s.Table != nil && s.Table.Kind() != introspect.Relay
}

// Variable is an environment variable.
type Variable struct {
	Name string
	// What describes the value.
	What string
	// Value is the value, "" if it is not known.
	Value string
}

// Variables returns the environment variables that the configuration needs.
func (d *Draft) Variables() []Variable {
	all := []Variable{{SourceVariable, "the URL of the database", d.Source.URL}}
	sinks := d.sinks()
	for i := range sinks {
		all = append(all, sinks[i].variable)
	}
	for i := range sinks {
		for _, v := range sinks[i].api.variables {
			if !slices.ContainsFunc(all, func(known Variable) bool { return known.Name == v.Name }) {
				all = append(all, v)
			}
		}
	}
	return all
}

// wants is a property that every payload must have, or "".
func (d *Draft) wants() string {
	for _, s := range d.sinks() {
		if s.api.wants != "" {
			return s.api.wants
		}
	}
	return ""
}

// hasNATS reports whether a sink is NATS.
func (d *Draft) hasNATS() bool {
	return slices.ContainsFunc(d.sinks(), func(s namedSink) bool {
		scheme, _, _ := strings.Cut(s.variable.Value, ":")
		return strings.HasSuffix(scheme, "nats")
	})
}

// Text returns the content of the file.
func (d *Draft) Text() string {
	var w writer
	w.comment(0, "Written by relay init. docs/configuration.md describes every key. After a change, run:")
	w.line(0, "#   relay check -c "+d.FileArgument())
	w.blank()
	w.comment(0, "Environment variables to set, so that this file holds no secret:")
	width := 0
	for _, v := range d.Variables() {
		width = max(width, len(v.Name))
	}
	for _, v := range d.Variables() {
		w.line(0, "#   "+v.Name+strings.Repeat(" ", width-len(v.Name))+"  "+v.What)
	}
	w.blank()
	w.line(0, "#admin: {listen: 127.0.0.1:7070}   # probes, metrics, dashboard; \"\" disables it")
	w.line(0, "#log: {level: info, format: text}   # debug, info, warn, error; text, json")
	w.blank()
	w.line(0, "pipelines:")
	w.line(1, "- name: "+scalar(d.Name)+"   # in metrics, logs and at the sink; do not change it later")
	d.writeSource(&w)
	w.blank()
	w.comment(2, "When to count events. eager: continue at once while batches are full.")
	w.line(2, `#schedule: "@every 1s"`)
	w.line(2, "#eager: true")
	d.writeSinks(&w)
	w.blank()
	w.comment(2, "A rejected event is retried after these delays. After max_attempts rejections it becomes a dead letter. "+
		"An outage does not count as an attempt.")
	w.line(2, "retry: {max_attempts: 10, initial: 1s, max: 5m, multiplier: 2}")
	w.blank()
	w.comment(2, "`relay dead` lists, replays and discards dead letters. A hook is a sink that is notified of each:")
	w.line(2, "#dead_letter:")
	w.line(2, "#  hook: {url: https://ops.example/dead}")
	w.blank()
	w.comment(2, d.Source.aboutArchive())
	w.line(2, "#archive: {table: outbox_archive}")
	w.blank()
	w.comment(1, "One process runs all pipelines of this list. For another table, let `relay init -o more.yaml` write a second file, move its entry here, "+
		"and give variables whose values differ names of their own:")
	w.line(1, "#- name: invoices")
	w.line(1, "#  source: {url: \"${"+SourceVariable+"}\", table: invoice_events}")
	w.line(1, "#  sink: {url: \"${RELAY_INVOICES_SINK_URL}\"}")
	return w.String()
}

// aboutArchive says what an archive has.
func (s *Source) aboutArchive() string {
	const sent = " An archive keeps what was sent, in a table that `relay migrate` creates. It does not keep the rows, so `relay replay` cannot send them again:"
	_, stays := s.Stays()
	switch {
	case !s.IsCustom():
		return "Delivered events are deleted. An archive keeps copies, in a table that `relay migrate` creates:"
	case stays:
		return "Delivered rows stay." + sent
	}
	return "Delivered rows are deleted." + sent
}

// NameOf returns the name of a pipeline for a table.
func NameOf(table string) string {
	_, name, _ := buffer.SplitTable(table)
	name = strings.Trim(notNameCharacters.ReplaceAllString(strings.ToLower(name), "_"), "_")
	if name == "" || name == "outbox_events" {
		return "events"
	}
	return name
}

var notNameCharacters = regexp.MustCompile(`[^a-z0-9_-]+`)

// FileArgument is the file's name as a word in a shell command.
func (d *Draft) FileArgument() string {
	if shellSafe.MatchString(d.File) {
		return d.File
	}
	return "'" + strings.ReplaceAll(d.File, "'", `'\''`) + "'"
}

var shellSafe = regexp.MustCompile(`^[A-Za-z0-9_./:=@%+,-]+$`)

// writer writes YAML, indented by two blanks a level.
type writer struct{ strings.Builder }

func (w *writer) blank() { w.WriteByte('\n') }

func (w *writer) line(level int, text string) {
	w.WriteString(strings.TrimRight(strings.Repeat("  ", level)+text, " ") + "\n")
}

// lines writes several lines.
func (w *writer) lines(level int, text string) {
	for line := range strings.SplitSeq(strings.Trim(text, "\n"), "\n") {
		w.line(level, line)
	}
}

// comment writes a comment in lines of at most 80 characters.
func (w *writer) comment(level int, text string) {
	for _, line := range Wrap(text, 78-2*level) {
		w.line(level, "# "+line)
	}
}

// Wrap splits text into lines of at most width characters.
func Wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, line)
}

// plainScalar matches text that YAML reads as it is.
var plainScalar = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9_./-]*$`)

// scalar is text as a YAML value. The configuration expands nothing in it.
func scalar(text string) string {
	reserved := []string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
	if plainScalar.MatchString(text) && !slices.Contains(reserved, strings.ToLower(text)) {
		return text
	}
	return "'" + strings.ReplaceAll(literal(text), "'", "''") + "'"
}

// literal escapes ${, so that the configuration expands nothing in the text.
func literal(text string) string { return strings.ReplaceAll(text, "${", "$${") }

// hostAndPath returns the host and path of an http URL in lower case, "" for other URLs.
func hostAndPath(text string) (host, path string) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return "", ""
	}
	return strings.ToLower(u.Hostname()), strings.ToLower(u.Path)
}
