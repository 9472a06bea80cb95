package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/preview"
	"github.com/outboxrelay/relay/internal/scaffold"
	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	// maxEditMatches is up to how many events the error of an ambiguous --edit counts.
	maxEditMatches = 1000
	// maxChangedLines is how many changed lines are shown before the question.
	maxChangedLines = 20
)

// edited is the one event that --edit changes.
type edited struct {
	deadLetters
	event buffer.DeadEvent
	// headers: they are edited too.
	headers bool
}

// document is what is edited: the payload, the row, or an object of headers and payload.
func (e *edited) document() []byte {
	switch {
	case e.event.Row != nil:
		return e.event.Row
	case !e.headers:
		return e.event.Payload
	}
	headers := "null"
	if e.event.Headers != nil {
		headers = string(e.event.Headers)
	}
	return slices.Concat([]byte(`{"headers":`), []byte(headers), []byte(`,"payload":`), e.event.Payload, []byte("}"))
}

// edit returns the change that a document on one line makes. What was not changed stays as it was written.
func (e *edited) edit(ctx context.Context, written []byte) (buffer.DeadEdit, error) {
	change := buffer.DeadEdit{ID: e.event.ID, UUID: e.event.UUID, Row: e.event.Row != nil, Old: e.event.Payload, New: written}
	if change.Row {
		change.Old = e.event.Row
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		defer cancel()
		return change, e.CheckEditedRow(ctx, &e.event, written, e.custom.ID, e.custom.Cursor)
	}
	if !e.headers {
		return change, nil
	}
	var parts struct{ Headers, Payload json.RawMessage }
	decoder := json.NewDecoder(bytes.NewReader(written))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&parts)
	if err == nil && parts.Payload == nil {
		err = errors.New("the payload is missing")
	}
	if err != nil {
		return change, fmt.Errorf(`%w; expected {"headers": {...}, "payload": ...}`, err)
	}
	headers, err := preview.ParseHeaders(parts.Headers)
	if err != nil {
		return change, err
	}
	change.Headers, change.OldHeaders, change.NewHeaders = true, e.event.Headers, headers
	if sameJSON(e.event.Headers, headers) {
		change.NewHeaders = e.event.Headers
	}
	if change.New = parts.Payload; sameJSON(e.event.Payload, parts.Payload) {
		change.New = e.event.Payload
	}
	return change, nil
}

// sameJSON reports whether two texts differ in white space alone; nil is another text than null.
func sameJSON(a, b []byte) bool {
	var one, other bytes.Buffer
	return (a == nil) == (b == nil) && (a == nil || json.Compact(&one, a) == nil && json.Compact(&other, b) == nil && bytes.Equal(one.Bytes(), other.Bytes()))
}

// editAndReplay lets the user edit the payload of an event, or its row, and replays the event.
func (a *app) editAndReplay(ctx context.Context, all []deadLetters, f *deadFlags) error {
	e, err := a.oneEdited(ctx, all)
	if err != nil {
		return err
	}
	e.headers = f.withHeaders
	if e.headers && e.event.Row != nil {
		return usage("--with-headers: event %s is a row of a custom table, whose headers are made by the projection; expected --edit alone", e.event.Identity())
	}
	if e.event.Row != nil && e.custom.Mark != nil {
		return fmt.Errorf("event %s is a row of table %s, which done: mark keeps; expected it to be changed there, by SQL (docs/tables.md#rows-that-stay), and then > %s", e.event.Identity(), e.Table, e.replayCommand(a))
	}
	old := e.document()
	var before, compactOld bytes.Buffer
	if !utf8.Valid(old) || json.Indent(&before, old, "", "  ") != nil || json.Compact(&compactOld, old) != nil {
		return fmt.Errorf("event %s: the payload is not JSON text, which --edit needs; change the column payload of outbox_dead_letters by SQL, then > %s",
			e.event.Identity(), e.replayCommand(a))
	}
	path, err := writeTemp(e.event.Identity(), []byte(a.editHeader(e, f.yes)+before.String()+"\n"))
	if err != nil {
		return err
	}
	written, err := a.runEditor(ctx, path)
	if err != nil {
		return errors.Join(fmt.Errorf("%w; nothing was changed", err), os.Remove(path))
	}
	written = withoutHeader(written)
	if len(bytes.TrimSpace(written)) == 0 {
		a.printErr("the file is empty; nothing was replayed")
		return os.Remove(path)
	}
	kept := fmt.Sprintf("nothing was changed; the text is kept in %s, to be corrected there > VISUAL='cp %[1]s' %[2]s --edit%[3]s", path, e.replayCommand(a), map[bool]string{true: " --with-headers"}[e.headers])
	text, after, err := checkEdited(path, written)
	var edit buffer.DeadEdit
	if err == nil {
		edit, err = e.edit(ctx, text)
	}
	if err != nil {
		return fmt.Errorf("%w; %s", err, kept)
	}
	if bytes.Equal(text, compactOld.Bytes()) {
		a.printErr("not changed; nothing was replayed")
		return os.Remove(path)
	}
	a.printChangedLines(before.String(), after)
	one := []deadLetters{e.deadLetters}
	if !f.yes {
		if err := a.confirm(ctx, replay, one); err != nil {
			return fmt.Errorf("%w; the text is kept in %s", err, path)
		}
	}
	switch err := e.store(ctx, edit); {
	case errors.Is(err, buffer.ErrEventWaits):
		return fmt.Errorf("event %s is still in the buffer, where it waits to be sent to another sink; expected an event that no sink waits for; %s", e.event.Identity(), kept)
	case errors.Is(err, buffer.ErrDeadChanged):
		return fmt.Errorf("event %s: %w; %s", e.event.Identity(), buffer.ErrDeadChanged, kept)
	case err != nil:
		return fmt.Errorf("%s: %w; %s", e.pipeline, err, kept)
	}
	if err := os.Remove(path); err != nil {
		a.printErr("relay: " + err.Error())
	}
	answered := *f
	answered.yes = true
	if err := a.change(ctx, replay, one, &answered); err != nil || a.failed {
		again := ""
		if err == nil && e.event.Row != nil { // the table refuses the row as it is
			again = " --edit"
		}
		return errors.Join(err, fmt.Errorf("event %s was changed, but not replayed > %s%s", e.event.Identity(), e.replayCommand(a), again))
	}
	return nil
}

// editHeader says above the text what it is, what happens with it, and how to cancel.
func (a *app) editHeader(e *edited, yes bool) string {
	what, then := "This is the payload", "the event is replayed with it"
	switch {
	case e.headers:
		what, then = "These are headers and payload", "the event is replayed with them"
	case e.event.Row != nil:
		what, then = "This is the row", "a replay inserts it into the table again, and the projection makes the payload of it"
	}
	if !yes {
		then = "relay shows what changed and asks; with a yes " + then
	}
	var b strings.Builder
	for _, text := range []string{
		fmt.Sprintf("%s of event %s of pipeline %s, a dead letter because of:", what, e.event.Identity(), e.pipeline),
		cut(printable(oneLine(a.redact(e.event.Error))), 300),
		"Correct it, save and quit: " + then + ".",
		"To cancel, quit without a change. Lines with # above it are ignored.",
	} {
		for _, line := range scaffold.Wrap(text, 78) {
			b.WriteString(strings.TrimRight("# "+line, " ") + "\n")
		}
	}
	return b.String()
}

// withoutHeader blanks the lines that begin with # above the text, so that places in it stay the same.
func withoutHeader(written []byte) []byte {
	text := slices.Clone(written)
	for at := 0; at < len(text); {
		line := text[at:]
		if end := bytes.IndexByte(line, '\n'); end >= 0 {
			line = line[:end]
		}
		if trimmed := bytes.TrimSpace(line); len(trimmed) > 0 && trimmed[0] != '#' {
			break
		}
		for i := range line {
			line[i] = ' '
		}
		at += len(line) + 1
	}
	return text
}

// oneEdited returns the event that is selected. It rejects a selection of none or several.
func (a *app) oneEdited(ctx context.Context, all []deadLetters) (*edited, error) {
	type key struct{ pipeline, id string }
	var (
		found      *edited
		seen       = map[key]bool{}
		unnotified int64
		dropped    []string
	)
	for _, l := range all {
		sinks, err := l.dropped(ctx)
		if err != nil {
			return nil, err
		}
		if err := l.each(ctx, func(e *buffer.DeadEvent) (bool, error) {
			switch {
			case l.Notifies(e.Sink) && e.NotifiedAt.IsZero():
				unnotified++
				return true, nil
			case slices.Contains(sinks, e.Sink):
				if !slices.Contains(dropped, e.Sink) {
					dropped = append(dropped, e.Sink)
				}
				return true, nil
			case found == nil:
				found = &edited{deadLetters: l, event: *e}
			}
			seen[key{l.pipeline, e.Identity()}] = true
			return len(seen) <= maxEditMatches, nil
		}); err != nil {
			return nil, err
		}
	}
	switch n := len(seen); {
	case n == 0:
		text := "no dead letter that can be replayed matches"
		if unnotified > 0 {
			text += fmt.Sprintf("; the dead-letter hook was not notified of %s yet", admin.Count(unnotified))
		}
		if len(dropped) > 0 {
			text += "; dropped are " + strings.Join(dropped, ", ")
		}
		if unnotified == 0 && len(dropped) == 0 {
			closed, err := closedOfIDs(ctx, all)
			if err != nil {
				return nil, err
			}
			text += closed
		}
		return nil, usage("%s; expected one event for --edit", text)
	case n > 1:
		matching := admin.Count(int64(n))
		if n > maxEditMatches {
			matching = "more than " + admin.Count(maxEditMatches)
		}
		return nil, usage("%s events match; expected one for --edit, like --pipeline %s --id %s", matching, found.pipeline, found.event.Identity())
	}
	found.filter.OlderThan, found.filter.NewerThan = 0, 0 // it takes time to edit
	if found.filter.IDs, found.filter.UUIDs = []int64{found.event.ID}, nil; found.event.UUID != uuid.Nil {
		found.filter.IDs, found.filter.UUIDs = []int64{}, []uuid.UUID{found.event.UUID}
	}
	return found, nil
}

// closedOfIDs says how the dead letters that --id selects were closed: "; 17 was replayed 2m ago by ..."; "" without --id. An event that was replayed is in the buffer, or was sent.
func closedOfIDs(ctx context.Context, all []deadLetters) (text string, err error) {
	const shown = 3
	n := 0
	for _, l := range all {
		if len(filterIDs(l.filter)) == 0 {
			return "", nil
		}
		l.filter.Closed = true
		if err := l.each(ctx, func(e *buffer.DeadEvent) (bool, error) {
			text += "; " + e.Identity() + " was " + closedAgo(e)
			n++
			return n < shown, nil
		}); err != nil {
			return "", err
		}
	}
	return text, nil
}

// dropped returns the dropped sinks that have matches.
func (l *deadLetters) dropped(ctx context.Context) (sinks []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	all, err := l.Store.CountDropped(ctx, l.filter)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.pipeline, err)
	}
	for _, of := range all {
		sinks = append(sinks, of.Sink)
	}
	return sinks, nil
}

func (e *edited) store(ctx context.Context, edit buffer.DeadEdit) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return e.Store.EditDead(ctx, edit)
}

// replayCommand is the command that replays the event.
func (e *edited) replayCommand(a *app) string {
	return fmt.Sprintf("relay dead replay -c %s --pipeline %s --id %s", a.config, e.pipeline, e.event.Identity())
}

// writeTemp writes a temporary file that only the user can read.
func writeTemp(id string, text []byte) (path string, err error) {
	file, err := os.CreateTemp("", "relay-dead-"+id+"-*.json")
	if err != nil {
		return "", err
	}
	_, err = file.Write(text)
	return file.Name(), errors.Join(err, file.Close())
}

// runEditor runs the user's editor and returns what the file has then. The value of VISUAL or EDITOR may have arguments and quotes: a shell reads
// it, as git's and kubectl's do.
func (a *app) runEditor(ctx context.Context, path string) ([]byte, error) {
	editor := os.Getenv("VISUAL")
	if editor == "" {
		editor = os.Getenv("EDITOR")
	}
	if editor == "" {
		if !isTerminal(os.Stdin) {
			return nil, errors.New("there is no terminal, and neither VISUAL nor EDITOR is set")
		}
		editor = "vi"
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", editor+` "$@"`, "sh", path) //nolint:gosec // it is the user's own command
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, a.stdout, a.stderr
	if !isTerminal(a.stdout) { // standard output is for data
		cmd.Stdout = a.stderr
	}
	interrupts := make(chan os.Signal, 1) // Ctrl-C is the editor's
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("the editor %q failed: %w", editor, err)
	}
	return os.ReadFile(path) //nolint:gosec // it is the file that was made for the editor
}

// checkEdited returns what was written on one line, and indented.
func checkEdited(path string, written []byte) (compact []byte, indented string, err error) {
	var (
		one, lines bytes.Buffer
		valid      json.RawMessage // Compact does not say where an error is
	)
	if err = json.Unmarshal(written, &valid); err == nil && utf8.Valid(written) {
		if err = json.Compact(&one, written); err == nil {
			err = json.Indent(&lines, one.Bytes(), "", "  ")
		}
		return one.Bytes(), lines.String(), err
	}
	at := len(written)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		at = int(max(0, min(syntax.Offset-1, int64(len(written)))))
	}
	if err == nil {
		err = errors.New("the text is not UTF-8")
		at = len(written) - len(bytes.TrimLeftFunc(written, func(r rune) bool { return r != utf8.RuneError }))
	}
	line := 1 + bytes.Count(written[:at], []byte("\n"))
	column := 1 + utf8.RuneCount(written[1+bytes.LastIndexByte(written[:at], '\n'):at])
	return nil, "", fmt.Errorf("%s:%d:%d: %w; expected JSON", path, line, column, err)
}

// printChangedLines shows the lines in which two texts differ.
func (a *app) printChangedLines(before, after string) {
	changed := changedLines(strings.Split(before, "\n"), strings.Split(after, "\n"))
	for _, line := range changed[:min(len(changed), maxChangedLines)] {
		a.printErr(cut(visible(line), 200))
	}
	if more := len(changed) - maxChangedLines; more > 0 {
		a.printErr(fmt.Sprintf("... and %s", plural(int64(more), "more line", "more lines")))
	}
}

// visible replaces what controls a terminal, and keeps the indentation.
func visible(line string) string {
	rest := strings.TrimLeft(line, "+- ")
	return line[:len(line)-len(rest)] + printable(rest)
}

// changedLines returns the lines of a with "- " and those of b with "+ " that a longest common subsequence does not have.
func changedLines(a, b []string) (changed []string) {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	const maxCells = 1 << 20
	width := len(b) + 1
	var common []int // of a[i:] and b[j:]; nil: too large to compare
	if (len(a)+1)*width <= maxCells {
		common = make([]int, (len(a)+1)*width)
		for i := len(a) - 1; i >= 0; i-- {
			for j := len(b) - 1; j >= 0; j-- {
				if a[i] == b[j] {
					common[i*width+j] = 1 + common[(i+1)*width+j+1]
				} else {
					common[i*width+j] = max(common[(i+1)*width+j], common[i*width+j+1])
				}
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && common != nil && a[i] == b[j]:
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && (common == nil || common[(i+1)*width+j] >= common[i*width+j+1]):
			changed = append(changed, "- "+a[i])
			i++
		default:
			changed = append(changed, "+ "+b[j])
			j++
		}
	}
	return changed
}
