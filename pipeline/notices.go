package pipeline

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// notices are what operators should know of a pipeline although it makes progress, each under a key. It is safe for concurrent use.
type notices struct {
	mu    sync.Mutex
	texts map[string]string
	// answers are those of the sink of which events count as delivered.
	answers []string
}

func (n *notices) setAnswers(texts []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answers = texts
}

// answersText returns the answers, a line each.
func (n *notices) answersText() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.answers, "\n")
}

// set replaces the notice of a key. An empty text removes it.
func (n *notices) set(key, text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if text == "" {
		delete(n.texts, key)
		return
	}
	if n.texts == nil {
		n.texts = map[string]string{}
	}
	n.texts[key] = strings.ReplaceAll(text, "\n", " ")
}

// slowAfter is how long a send takes that operators should know of.
const slowAfter = 5 * time.Second

// sent takes how long the last send took: a sink that answers slowly looks like one that is busy.
func (n *notices) sent(took time.Duration) {
	text := ""
	if took >= slowAfter {
		text = "the sink is slow to answer: the last send took " + took.Round(time.Second).String()
	}
	n.set("slow", text)
}

// answersKey is that of what the sink says of its answers.
const answersKey = "answers"

// text returns the notices in the order of their keys, a line each, but for those of some keys.
func (n *notices) text(but ...string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	lines := make([]string, 0, len(n.texts))
	for _, key := range slices.Sorted(maps.Keys(n.texts)) {
		if !slices.Contains(but, key) {
			lines = append(lines, n.texts[key])
		}
	}
	return strings.Join(lines, "\n")
}

// SetNotice has `relay status` and `relay doctor` show a text with the pipeline, and its sink, until it is replaced: something that is wrong
// although progress is made. key is its subject, and an empty text removes it. The text is written within 5 seconds; let it change seldom, so
// name a time rather than an age. It is safe for concurrent use.
func (p *Pipeline) SetNotice(key, text string) { p.notices.set(key, text) }
