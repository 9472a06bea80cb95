package scaffold

import (
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Gates returns a warning about the columns of a custom table that may say which rows may be sent, such as booleans, and nothing else says so; nil if there is none.
func (s *Source) Gates(known []Notice) []Notice {
	if !s.inspected() {
		return nil
	}
	var names, live, guesses []string // guesses are conditions on columns whose names or values say less
	for i := range s.Table.Columns {
		c := &s.Table.Columns[i]
		what, name := buffer.Suggests(c.Name), identifier(c.Name)
		isWord := c.Text() || s.Driver == "postgres" && strings.Contains(c.Type, ".") // or an enum
		condition := ""
		switch isTime := strings.HasPrefix(c.Type, "timestamp") || c.Type == "date" || s.Driver == "sqlite" && c.Text(); {
		case slices.ContainsFunc(known, func(n Notice) bool { return n.Column == c.Name }):
		case what == buffer.SuggestsVerdict && isWord:
			if s.Driver == "postgres" {
				name += "::text"
			}
			condition = "lower(" + name + ") = 'approved'"
		case c.Type == "boolean" && (what == buffer.SuggestsNothing || buffer.LooksGate(c.Name)),
			s.Driver == "sqlite" && c.Integer() && buffer.LooksGate(c.Name) && what != buffer.SuggestsVerdict:
			condition = buffer.Gate(what, name, !c.NotNull)
		case isTime && buffer.LooksWait(c.Name) && what == buffer.SuggestsNothing:
			condition = s.dueCondition(c, "")
			if !c.NotNull {
				condition = "(" + condition + ")"
			}
		}
		switch {
		case condition == "":
			continue
		case what == buffer.SuggestsHeld, what == buffer.SuggestsReady, buffer.LooksWait(c.Name):
			live = append(live, condition)
		default:
			guesses = append(guesses, condition)
		}
		names = append(names, c.Name)
	}
	if names == nil {
		return nil
	}
	if live == nil {
		live = guesses[:1]
	}
	says := "it says"
	if len(names) > 1 {
		says = "one of them says"
	}
	if m, ok := s.mark(); ok {
		live = append([]string{m.where}, live...)
	}
	return []Notice{{Text: "Warning: the relay does not look at " + strings.Join(names, ", ") + ", and sends all rows. If " + says + " which rows may be sent, name it in source.where, such as: " + strings.Join(live, " AND ")}}
}
