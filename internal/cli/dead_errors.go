package cli

import (
	"cmp"
	"context"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	// maxErrorGroups bounds the memory of a list by error. The dead letters with further errors are counted together.
	maxErrorGroups = 1000
	// maxComparedError is how many bytes of two errors are compared.
	maxComparedError = 500
)

// errorGroup are dead letters whose errors differ only in numbers and ids.
type errorGroup struct {
	Pipeline string `json:"pipeline"`
	Sink     string `json:"sink,omitempty"`
	Count    int64  `json:"count"`
	// DiedAt, EventID and Error are those of the dead letter that died last.
	DiedAt  time.Time      `json:"died_at"`
	EventID admin.Identity `json:"event_id"`
	Error   string         `json:"error"`

	id string // EventID as text
}

// errorKey finds a group.
type errorKey struct{ pipeline, sink, error string }

// errorGroups are the groups of the dead letters that were added, and how many are in none, because there were too many groups.
type errorGroups struct {
	groups map[errorKey]*errorGroup
	others int64
}

func (g *errorGroups) add(e *buffer.DeadEvent) {
	key := errorKey{e.Pipeline, e.Sink, generalized(e.Error)}
	group := g.groups[key]
	if group == nil {
		if len(g.groups) == maxErrorGroups {
			g.others++
			return
		}
		group = &errorGroup{Pipeline: e.Pipeline, Sink: e.Sink}
		g.groups[key] = group
	}
	group.Count++
	if group.Count == 1 || e.DiedAt.After(group.DiedAt) {
		group.DiedAt, group.EventID, group.Error, group.id = e.DiedAt.UTC(), admin.NewIdentity(e), e.Error, e.Identity()
	}
}

// sorted returns the groups, the one with the most dead letters first.
func (g *errorGroups) sorted() []*errorGroup {
	all := make([]*errorGroup, 0, len(g.groups))
	for _, group := range g.groups {
		all = append(all, group)
	}
	slices.SortFunc(all, func(a, b *errorGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), b.DiedAt.Compare(a.DiedAt), cmp.Compare(a.Pipeline, b.Pipeline), cmp.Compare(a.id, b.id))
	})
	return all
}

var (
	// wordWithDigit is a number, a uuid, or another id that contains a digit.
	wordWithDigit = regexp.MustCompile(`[\pL\pN_-]*\pN[\pL\pN_-]*`)
	// httpStatus is a status with its reason phrase, as the sinks write it.
	httpStatus = regexp.MustCompile(`\b[1-5][0-9][0-9] [A-Z][a-z]+`)
)

// generalized is an error without its numbers and ids. The first HTTP status stays.
func generalized(text string) string {
	if len(text) > maxComparedError {
		text = strings.ToValidUTF8(text[:maxComparedError], "")
	}
	begin := ""
	if at := httpStatus.FindStringIndex(text); at != nil {
		begin = wordWithDigit.ReplaceAllString(text[:at[0]], "#") + text[at[0]:at[1]]
		text = text[at[1]:]
	}
	return begin + wordWithDigit.ReplaceAllString(text, "#")
}

// listByError prints how many dead letters each error has. If a pipeline cannot be read, it prints the error and
// continues with the others.
func (a *app) listByError(ctx context.Context, all []deadLetters, f *deadFlags) error {
	found := errorGroups{groups: map[errorKey]*errorGroup{}}
	for _, l := range all {
		if err := l.each(ctx, func(e *buffer.DeadEvent) (bool, error) {
			found.add(e)
			return true, nil
		}); err != nil {
			a.fail(err)
		}
	}
	groups := found.sorted()
	var more int64
	if f.limit > 0 && len(groups) > f.limit {
		for _, group := range groups[f.limit:] {
			more += group.Count
		}
		groups = groups[:f.limit]
	}
	for _, group := range groups {
		group.Error = a.redact(group.Error)
	}
	if f.asJSON {
		if err := a.printJSON(groups); err != nil {
			return err
		}
	} else if len(groups) == 0 && a.failed { // no table without a pipeline
		return nil
	} else if _, err := io.WriteString(a.stdout, errorTable(errorRows(groups, hasSeveralSinks(all)), terminalWidth(a.stdout))); err != nil {
		return err
	}
	if more > 0 {
		a.printErr(countDeadLetters(more) + " more with other errors; use --limit 0 to show all")
	}
	if found.others > 0 {
		a.printErr(countDeadLetters(found.others) + " more with other errors, which are not counted one by one; use --topic or --error to select some")
	}
	return nil
}

func errorRows(groups []*errorGroup, several bool) [][]string {
	head := []string{"COUNT", "PIPELINE"}
	if several {
		head = append(head, "SINK")
	}
	rows := [][]string{append(head, "NEWEST", "ID", "ERROR")}
	for _, group := range groups {
		row := []string{admin.Count(group.Count), group.Pipeline}
		if several {
			row = append(row, printable(cmp.Or(group.Sink, "-")))
		}
		rows = append(rows, append(row, ago(group.DiedAt), group.id, printable(group.Error)))
	}
	return rows
}

// maxErrorLines is how many lines an error has below the other columns.
const maxErrorLines = 3

// errorTable formats rows whose last column is an error. If the errors do not fit beside the other columns in
// maxWidth characters, 0 for no limit, they stand below them, wrapped between words.
func errorTable(rows [][]string, maxWidth int) string {
	table := columns(rows, 0)
	if maxWidth == 0 || !slices.ContainsFunc(strings.Split(table, "\n"), func(line string) bool { return utf8.RuneCountInString(line) > maxWidth }) {
		return table
	}
	last := len(rows[0]) - 1
	others := make([][]string, len(rows))
	for i, row := range rows {
		others[i] = row[:last]
	}
	narrow := strings.Split(strings.TrimSuffix(columns(others, 0), "\n"), "\n")
	var b strings.Builder
	for i, line := range narrow {
		b.WriteString(cut(line, maxWidth) + "\n")
		for _, part := range wrap(rows[i][last], maxWidth-4, maxErrorLines) {
			b.WriteString("    " + part + "\n")
		}
	}
	return b.String()
}

// wrap breaks a text between words into at most maxLines lines of at most width characters. A longer word is broken.
func wrap(text string, width, maxLines int) (lines []string) {
	width = max(width, 20)
	for text != "" {
		runes := []rune(text)
		if len(runes) <= width {
			return append(lines, text)
		}
		if len(lines) == maxLines-1 {
			return append(lines, cut(text, width))
		}
		at := strings.LastIndex(string(runes[:width+1]), " ")
		if at <= 0 {
			at = len(string(runes[:width]))
		}
		lines = append(lines, strings.TrimRight(text[:at], " "))
		text = strings.TrimLeft(text[at:], " ")
	}
	return lines
}
