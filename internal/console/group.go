package console

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/internal/admin"
)

// maxNamed is how many pipelines a group of problems names, and leads to.
const maxNamed = 5

// place is a page about a problem.
type place struct{ Text, Link string }

// Named are the pipelines with the problem: "orders, bills and 12 more".
func (p *problem) Named() string {
	all := []string{p.Name()}
	for _, other := range p.Others {
		all = append(all, other.Name())
	}
	switch more := len(all) - maxNamed; {
	case len(all) == 1:
		return all[0]
	case more > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(all[:maxNamed], ", "), more)
	}
	return strings.Join(all[:len(all)-1], ", ") + " and " + all[len(all)-1]
}

// Places are the pages about the problem: one of each pipeline that a group names, unless all have the same.
func (p *problem) Places() (all []place) {
	if p.Link == "" {
		return nil
	}
	for _, other := range p.Others {
		if other.Link != p.Link && len(all) < maxNamed-1 {
			all = append(all, place{other.Name(), other.Link})
		}
	}
	if all == nil {
		return []place{{p.LinkText, p.Link}}
	}
	return slices.Insert(all, 0, place{p.LinkText + ": " + p.Name(), p.Link})
}

// grouped makes one problem of those with the same cause: what is wrong, the server, and what was said about it are the same, but for paths, addresses and numbers. It is as
// old as the oldest of them, and quotes the first.
func grouped(all []problem) []problem {
	type key struct {
		title, server, cause string
		warning              bool
	}
	at := map[key]int{}
	groups := make([]problem, 0, len(all))
	for i := range all {
		one := all[i]
		cause := key{one.Title, one.Server, causeOfText(one.Detail), one.Warning}
		if one.JoinedBy != "" {
			cause.cause = one.JoinedBy
		}
		k, known := at[cause]
		if !known || one.Detail == "" || one.Key != "" { // nobody said why, or it has a page of its own
			at[cause] = len(groups)
			groups = append(groups, one)
			continue
		}
		group := &groups[k]
		group.Others = append(group.Others, one)
		if one.JoinedBy != "" && len(group.Others) < maxNamed {
			group.Detail = distinctLines(group.Detail + "\n" + one.Detail)
		}
		if one.JoinedBy != "" && !strings.Contains(group.Fix, one.Fix) {
			group.Fix += "; " + one.Fix
		}
		if one.Since.Before(group.Since) {
			group.Since = one.Since
		}
	}
	return groups
}

// distinctLines is a text without lines that repeat: a database is tried several times at the same address.
func distinctLines(text string) string {
	if !strings.Contains(text, "\n") {
		return text
	}
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSuffix(line, "\n"); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

var (
	// operation is what was being done, before what a database said of it.
	operation = regexp.MustCompile(`^(?:sink: |database: |deferred: |\d+ sends in a row delivered nothing, the last: |[a-z]+ing [a-z' ]+: )+`)
	// urlPath is a URL of which the server stays.
	urlPath = regexp.MustCompile(`([a-z][a-z0-9+.-]*://[^\s/"']+)/[^\s"']*`)
)

// causeOfText is what the texts of one server about one cause have in common.
func causeOfText(text string) string {
	text = operation.ReplaceAllString(text, "")
	text = urlPath.ReplaceAllString(text, "$1")
	return admin.CauseOf(text)
}
