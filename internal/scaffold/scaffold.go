// Package scaffold writes a relay.yaml for somebody who does not know its keys yet: one
// pipeline, from a table that was looked at to a sink of which no more is known than
// its URL, with comments. No secret is written: variables of the environment are.
package scaffold

import (
	"regexp"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/internal/introspect"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Draft is what a relay.yaml is written of.
type Draft struct {
	// File is what the file will be called, for the commands in its comments.
	File string
	// Name is the pipeline's.
	Name   string
	Source Source
	// Sink is the sink's URL, as it is to be written.
	Sink URL
}

// Source is the buffer.
type Source struct {
	// Driver is "postgres" or "sqlite".
	Driver string
	URL    URL
	// Name is the table's, as a configuration has it.
	Name string
	// Table is what was found there; nil for a table of the relay's own that migrate is
	// to make.
	Table *introspect.Table
	// Preset is the table's shape where it is known; "" where it is not, or the table is
	// the relay's.
	Preset string
}

// Schema is the one that the relay's own tables are kept in beside a table of the
// user's own, on PostgreSQL.
const Schema = "relay"

// IsOwn tells whether the table is the user's.
func (s *Source) IsOwn() bool {
	return s.Preset != "" || s.Table != nil && s.Table.Kind() != introspect.Relays
}

// Variables are those of the environment that the configuration asks for, each once.
func (d *Draft) Variables() []Variable {
	var all []Variable
	for _, v := range slices.Concat(d.Source.URL.Variables, d.Sink.Variables, known(d.Sink).variables) {
		if !slices.ContainsFunc(all, func(other Variable) bool { return other.Name == v.Name }) {
			all = append(all, v)
		}
	}
	return all
}

// Text is the file.
func (d *Draft) Text() string {
	var w writer
	w.comment(0, "Made by relay init. Every key is in docs/configuration.md. After a change:")
	w.line(0, "#   relay check -c "+d.FileArgument())
	if variables := d.Variables(); len(variables) > 0 {
		w.blank()
		w.comment(0, "Of the environment, because a file is no place for secrets:")
		width := 0
		for _, v := range variables {
			width = max(width, len(v.Name))
		}
		for _, v := range variables {
			w.line(0, "#   "+v.Name+strings.Repeat(" ", width-len(v.Name))+"  "+v.What)
		}
	}
	w.blank()
	w.line(0, "#admin: {listen: 127.0.0.1:7070}   # probes, metrics, dashboard; \"\" is off")
	w.line(0, "#log: {level: info, format: text}   # debug, info, warn, error; text, json")
	w.blank()
	w.line(0, "pipelines:")
	w.line(1, "- name: "+scalar(d.Name)+"   # in metrics, logs and at the sink; it stays")
	d.Source.write(&w, known(d.Sink).wants)
	d.sink(&w)
	w.blank()
	w.comment(2, "An event that is refused is tried again after these waits, and is a dead letter after so many refusals. "+
		"An outage is no refusal: no event dies of one.")
	w.line(2, "retry: {max_attempts: 10, initial: 1s, max: 5m, multiplier: 2}")
	w.blank()
	w.comment(2, "relay dead lists dead letters, sends them again, or gives them up. A hook hears of each; it is a sink like any other:")
	w.line(2, "#dead_letter:")
	w.line(2, "#  hook: {url: https://ops.example/dead}")
	w.blank()
	w.comment(2, "Delivered events are deleted. An archive keeps a copy, in a table that migrate makes:")
	w.line(2, "#archive: {table: outbox_archive}")
	return w.String()
}

// writer makes YAML, two blanks a level.
type writer struct{ strings.Builder }

func (w *writer) blank() { w.WriteByte('\n') }

func (w *writer) line(level int, text string) {
	w.WriteString(strings.TrimRight(strings.Repeat("  ", level)+text, " ") + "\n")
}

// lines writes a text of several lines.
func (w *writer) lines(level int, text string) {
	for line := range strings.SplitSeq(strings.Trim(text, "\n"), "\n") {
		w.line(level, line)
	}
}

// comment writes text in lines of a readable length.
func (w *writer) comment(level int, text string) {
	const widest = 80
	line := "#"
	for word := range strings.FieldsSeq(text) {
		if len(line) > 1 && 2*level+len(line)+1+len(word) > widest {
			w.line(level, line)
			line = "#"
		}
		line += " " + word
	}
	w.line(level, line)
}

var (
	// plain text is read as it stands, also in the middle of a line.
	plainText = regexp.MustCompile(`^[A-Za-z/$][A-Za-z0-9_./:@$?=&{},+%~-]*$`)
	shellSafe = regexp.MustCompile(`^[A-Za-z0-9_./:=@%+,-]+$`)
)

// scalar is text as a value of YAML's.
func scalar(text string) string {
	switch strings.ToLower(text) {
	case "true", "false", "null", "yes", "no", "on", "off", "y", "n":
		return `"` + text + `"`
	}
	if plainText.MatchString(text) && !strings.HasSuffix(text, ":") {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", "''") + "'"
}

// literal is text in which nothing is expanded.
func literal(text string) string { return strings.ReplaceAll(text, "${", "$${") }

// shellQuoted is text as a word of a shell's.
func shellQuoted(text string) string {
	if shellSafe.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// NameOf makes a pipeline's name of a table's.
func NameOf(table string) string {
	_, name, _ := buffer.SplitTable(table)
	name = strings.Trim(unnamed.ReplaceAllString(strings.ToLower(name), "_"), "_")
	if name == "" || name == "outbox_events" {
		return "events"
	}
	return name
}

var unnamed = regexp.MustCompile(`[^a-z0-9_-]+`)

// FileArgument is the file's name as a word of a shell's.
func (d *Draft) FileArgument() string { return shellQuoted(d.File) }
