package cli

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// listByError prints how many dead letters each error has. If a pipeline cannot be read, it prints the error and
// continues with the others.
func (a *app) listByError(ctx context.Context, all []deadLetters, f *deadFlags) error {
	var found admin.ErrorGroups
	for _, l := range all {
		if err := l.each(ctx, func(e *buffer.DeadEvent) (bool, error) {
			found.Add(e)
			return true, nil
		}); err != nil {
			a.fail(err)
		}
	}
	groups := found.Sorted()
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
	if found.Others > 0 {
		a.printErr(countDeadLetters(found.Others) + " more with other errors, which are not counted one by one; use --topic or --error to select some")
	}
	return nil
}

func errorRows(groups []*admin.ErrorGroup, several bool) [][]string {
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
		rows = append(rows, append(row, ago(group.DiedAt), group.ID, printable(group.Error)))
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
