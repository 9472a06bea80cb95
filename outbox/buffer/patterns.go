package buffer

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Patterns is a set of patterns of topics: tokens between dots, of which "*" stands for one token and "#" or ">"
// at the end for one token or more, as in NATS subjects. The empty set matches every topic. A longer topic than MatchedTopic is matched by its
// beginning. A set is safe for concurrent use.
type Patterns []pattern

type pattern []string

// ParsePatterns returns the set of patterns. The error is about the first that can never match.
func ParsePatterns(patterns []string) (Patterns, error) {
	set := make(Patterns, len(patterns))
	for i, text := range patterns {
		if err := checkPattern(text); err != nil {
			return nil, err
		}
		set[i] = strings.Split(text, ".")
	}
	return set, nil
}

func checkPattern(text string) error {
	tokens := strings.Split(text, ".")
	for i, token := range tokens {
		switch {
		case token == "":
			return fmt.Errorf("pattern %q has an empty token and matches no topic; expected tokens between dots, such as orders.*", text)
		case (token == "#" || token == ">") && i < len(tokens)-1:
			return fmt.Errorf("pattern %q has %s before its end; expected it as the last token", text, token)
		case len(token) > 1 && strings.ContainsAny(token, "*#>"):
			return fmt.Errorf("pattern %q has a wildcard within a token; expected * for a whole token, or # for all that follow", text)
		case strings.ContainsFunc(token, unicode.IsSpace):
			return fmt.Errorf("pattern %q has white space; expected tokens between dots", text)
		}
	}
	return nil
}

// MatchedTopic is how many characters of a topic are matched, and so read to route an event: a topic may be as long as a payload.
const MatchedTopic = 4096

// TopicStart returns what is matched of a topic.
func TopicStart(topic string) string {
	if len(topic) <= MatchedTopic {
		return topic
	}
	n := 0
	for i := range topic {
		if n++; n > MatchedTopic {
			return topic[:i]
		}
	}
	return topic
}

// Match reports whether a pattern of the set matches the topic.
func (p Patterns) Match(topic string) bool {
	topic = TopicStart(topic)
	return len(p) == 0 || slices.ContainsFunc(p, func(one pattern) bool { return one.match(topic) })
}

func (p pattern) match(topic string) bool {
	for i, token := range p {
		if token == "#" || token == ">" {
			return true
		}
		part, rest, more := strings.Cut(topic, ".")
		if token != "*" && token != part || more != (i < len(p)-1) {
			return false
		}
		topic = rest
	}
	return true
}

// covers reports whether each topic that matches one of the patterns b matches one of a. It is false, too, if it takes several patterns of a to cover one of b.
func covers(a, b []string) bool {
	if len(a) == 0 {
		return true
	}
	if len(b) == 0 {
		b = []string{"#"}
	}
	for _, one := range b {
		if !slices.ContainsFunc(a, func(other string) bool { return coversPattern(strings.Split(other, "."), strings.Split(one, ".")) }) {
			return false
		}
	}
	return true
}

// coversPattern reports whether each topic that matches b matches a.
func coversPattern(a, b pattern) bool {
	for i, token := range a {
		if i == len(b) {
			return false
		}
		switch {
		case token == "#" || token == ">":
			return true
		case b[i] == "#" || b[i] == ">", token != "*" && token != b[i]:
			return false
		}
	}
	return len(a) == len(b)
}
