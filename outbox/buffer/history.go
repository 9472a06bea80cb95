package buffer

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Attempt is one try to deliver a batch that its sink did not accept.
type Attempt struct {
	// At is when it ended, by the database's clock.
	At time.Time `json:"at"`
	// Relay is the process that made it: host/pid/pipeline.
	Relay string `json:"relay"`
	// Error is what the sink answered, or why nothing could be sent, cut to [MaxAttemptError] bytes; no secret in it.
	Error string `json:"error"`
	// GroupID and Events are the batch that was sent, which others of its events may have left since.
	GroupID uuid.UUID `json:"group_id"`
	Events  int       `json:"events"`
	// Omitted is how many attempts before this one are left out of a [History].
	Omitted int `json:"omitted,omitempty"`
}

// History is what was tried to deliver a batch, or the event of a dead letter, in order. Of more than [MaxHistory] attempts the first and the last are kept.
type History []Attempt

const (
	// MaxHistory is how many attempts a [History] has at most, so that it usually has some 5 kB, and never more than 25 kB.
	MaxHistory = 20
	// MaxAttemptError is how many bytes the error of an [Attempt] has at most.
	MaxAttemptError = 200
	maxRelay        = 100
)

// Plus returns the history with one more attempt; h is not changed.
func (h History) Plus(a Attempt) History {
	a.Error, a.Relay = cut(a.Error, MaxAttemptError), cut(a.Relay, maxRelay)
	all := make(History, 0, len(h)+1)
	all = append(append(all, h...), a)
	for len(all) > MaxHistory {
		all[2].Omitted += all[1].Omitted + 1
		all = append(all[:1], all[2:]...)
	}
	return all
}

// cut returns at most so many bytes of a text, without control characters, which would be longer as JSON.
func cut(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return utf8.RuneError
		}
		return r
	}, strings.ToValidUTF8(text, "�"))
	if len(text) <= most {
		return text
	}
	most -= len("…")
	for !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}

// String returns the history as [ParseHistory] reads it: JSON in ASCII, which a database of any encoding takes; "" if it is empty.
func (h History) String() string {
	if len(h) == 0 {
		return ""
	}
	var text strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(h); err != nil { // cannot happen: a time of a database has a year of four digits
		return ""
	}
	var ascii strings.Builder
	for _, r := range strings.TrimSuffix(text.String(), "\n") {
		switch {
		case r < utf8.RuneSelf:
			ascii.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&ascii, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&ascii, `\u%04x`, r)
		}
	}
	return ascii.String()
}

// ParseHistory reads a history from a table. One that it does not understand is empty.
func ParseHistory(text string) (h History) {
	if text == "" || json.Unmarshal([]byte(text), &h) != nil {
		return nil
	}
	return h
}

// HistoryAfter is the history of the events of an outcome, which a buffer keeps with them: that of the lease, and what the owner of the lease, a process, tried.
func (l *Lease) HistoryAfter(o *Outcome, owner string) History {
	if !o.Tried {
		return l.History
	}
	return l.History.Plus(Attempt{At: l.ClaimedAt.Add(time.Since(l.ClaimedLocal)).UTC().Truncate(time.Millisecond), Relay: owner, Error: o.Error, GroupID: l.GroupID, Events: l.Len()})
}
