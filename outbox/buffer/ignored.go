package buffer

import (
	"regexp"
	"slices"
	"strings"
)

// IgnoredColumn is a column that a projection returns and that has no meaning: its values are not sent.
type IgnoredColumn struct {
	Name string
	// Meant is the column that it may stand for; "" if nothing is similar.
	Meant string
}

// String returns the name, with the guess.
func (c IgnoredColumn) String() string {
	if c.Meant == "" {
		return c.Name
	}
	return c.Name + " (did you mean " + c.Meant + "?)"
}

// synonyms are names of columns in other outboxes, in lower case and without separators, for those of a projection.
var synonyms = map[string]string{
	"type": "topic", "eventtype": "topic", "messagetype": "topic", "eventname": "topic", "subject": "topic", "channel": "topic",
	"partitionkey": "key", "routingkey": "key", "messagekey": "key", "metadata": "headers", "attributes": "headers",
}

// Ignored returns those of the columns that the projection returns which are not known, and are not named on purpose: a comment
// such as -- not sent: rank names those that the projection itself needs. columns are those of the table. If the projection has a
// star, only columns with an AS that the table does not have count. same compares names.
func (o CustomTable) Ignored(returned, columns, known []string, same func(a, b string) bool) (ignored []IgnoredColumn) {
	among := func(names []string, name string) bool {
		return slices.ContainsFunc(names, func(other string) bool { return same(name, other) })
	}
	comments := ""
	text := literals.ReplaceAllStringFunc(o.Project, func(part string) string {
		switch {
		case strings.HasPrefix(part, `"`):
			return part
		case strings.HasPrefix(part, "'"):
			return "''"
		case strings.Contains(strings.ToLower(part), "not sent"):
			comments += part + "\n"
		}
		return " "
	})
	all, excepted := star.MatchString(text), mentions(comments)
	own := []string{"group_id", o.ID, o.Cursor, o.CreatedAt, o.AvailableAt}
	for _, name := range returned {
		switch lower := strings.ToLower(name); {
		case among(known, name), among(own, name), excepted.bare[lower]:
		case all && (among(columns, name) || !named(text, name)):
		default:
			ignored = append(ignored, IgnoredColumn{name, meant(name, known, returned, among)})
		}
	}
	return ignored
}

// named reports whether a text has AS and the name.
func named(text, name string) bool {
	return regexp.MustCompile(`(?i)\bAS\s+"?` + regexp.QuoteMeta(name) + `(?:"|[^\pL\pN_$]|$)`).MatchString(text)
}

// meant returns the known column that a name may stand for, unless the projection returns that one, too.
func meant(name string, known, returned []string, among func(names []string, name string) bool) string {
	meant, ok := synonyms[strings.ReplaceAll(strings.ToLower(name), "_", "")]
	if !ok {
		meant = Nearest(name, known, max(1, len(name)/3))
	}
	if among(returned, meant) {
		return ""
	}
	return meant
}

// Excepted reports whether a comment of the projection, such as -- no delay: starts_at or -- no mark: stage, says that a column neither delays nor
// marks rows.
func (o CustomTable) Excepted(column string) bool {
	for _, part := range literals.FindAllString(o.Project, -1) {
		if noMeaning.MatchString(part) && mentions(part).bare[strings.ToLower(column)] {
			return true
		}
	}
	return false
}

// noMeaning matches comments that name columns of no meaning to the relay.
var noMeaning = regexp.MustCompile(`(?i)^(--|/\*).*\bno (delay|mark)\b`)
