package admin

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	// maxErrorGroups bounds the memory of a list by error. The dead letters with further errors are counted together.
	maxErrorGroups = 1000
	// maxComparedError is how many bytes of two errors are compared.
	maxComparedError = 500
)

// ErrorGroup are dead letters whose errors differ only in numbers and ids.
type ErrorGroup struct {
	Pipeline string `json:"pipeline"`
	Sink     string `json:"sink,omitempty"`
	Count    int64  `json:"count"`
	// DiedAt, EventID and Error are those of the dead letter that died last.
	DiedAt  time.Time `json:"died_at"`
	EventID Identity  `json:"event_id"`
	Error   string    `json:"error"`

	// ID is EventID as text.
	ID string `json:"-"`
}

// errorKey finds a group.
type errorKey struct{ pipeline, sink, error string }

// ErrorGroups groups dead letters by error. The zero value has none.
type ErrorGroups struct {
	groups map[errorKey]*ErrorGroup
	// Others counts those in no group, because there were too many.
	Others int64
}

// Add adds a dead letter.
func (g *ErrorGroups) Add(e *buffer.DeadEvent) {
	key := errorKey{e.Pipeline, e.Sink, generalized(e.Error)}
	group := g.groups[key]
	if group == nil {
		if len(g.groups) == maxErrorGroups {
			g.Others++
			return
		}
		if g.groups == nil {
			g.groups = map[errorKey]*ErrorGroup{}
		}
		group = &ErrorGroup{Pipeline: e.Pipeline, Sink: e.Sink}
		g.groups[key] = group
	}
	group.Count++
	if group.Count == 1 || e.DiedAt.After(group.DiedAt) {
		group.DiedAt, group.EventID, group.Error, group.ID = e.DiedAt.UTC(), NewIdentity(e), e.Error, e.Identity()
	}
}

// Sorted returns the groups, the one with the most dead letters first.
func (g *ErrorGroups) Sorted() []*ErrorGroup {
	all := make([]*ErrorGroup, 0, len(g.groups))
	for _, group := range g.groups {
		all = append(all, group)
	}
	slices.SortFunc(all, func(a, b *ErrorGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), b.DiedAt.Compare(a.DiedAt), cmp.Compare(a.Pipeline, b.Pipeline), cmp.Compare(a.ID, b.ID))
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

// CommonText is the longest part of the error that all dead letters of the group have: a filter finds them by it.
func (g *ErrorGroup) CommonText() string {
	longest := ""
	for _, part := range strings.Split(generalized(g.Error), "#") {
		if part = strings.TrimSpace(part); len(part) > len(longest) {
			longest = part
		}
	}
	return longest
}
