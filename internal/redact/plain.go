package redact

import (
	_ "embed"
	"iter"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

const (
	// maxGuessed is the length of the longest word that is not in a list.
	maxGuessed = 13
	// maxParts is the number of words of the longest name: a phrase may be a password.
	maxParts = 4
)

//go:embed paths.txt
var pathWordList string

// pathWords are words of the paths of APIs. A secret that equals one is a secret.
var pathWords = readWords(pathWordList)

// triples are the runs of three letters of the words of both lists, with a blank before and behind each word.
var triples = func() map[string]bool {
	all := map[string]bool{}
	for _, list := range []string{wordList, pathWordList} {
		for word := range strings.Lines(list) {
			if word = strings.TrimSpace(word); len(word) > maxGuessed { // the alphabet
				continue
			}
			for triple := range threes(word) {
				all[triple] = true
			}
		}
	}
	return all
}()

func threes(word string) iter.Seq[string] {
	return func(yield func(string) bool) {
		word = " " + word + " "
		for i := range len(word) - 2 {
			if !yield(word[i : i+3]) {
				return
			}
		}
	}
}

// caution is how sure it has to be that a segment of a path is no secret.
type caution int

const (
	// words: a segment of words is plain: "contacts", "bulk-import", "orderItems".
	words caution = iota
	// listed: only the words of the lists are, because the path is that of a webhook, whose token may look like a word.
	listed
	// onlyCommon: only common words are, because the value was expanded from ${...}.
	onlyCommon
)

var (
	// version matches v2, 1.0, v1beta1, and dates.
	version  = regexp.MustCompile(`(?i)^v?[0-9]+([._-]?(alpha|beta|rc|preview)?[0-9]*)*$`)
	numbered = regexp.MustCompile(`^([A-Za-z]+)[0-9]{1,2}$`)
	word     = regexp.MustCompile(`^[A-Z]?[a-z]+$`)
	number   = regexp.MustCompile(`^v?[0-9]{1,2}$`)
)

// isPlain reports whether a segment says nothing secret: words, a common word with a number, a version, a date, a short number.
func (c caution) isPlain(segment string) bool {
	base := segment
	if found := numbered.FindStringSubmatch(segment); found != nil {
		base = found[1]
	}
	switch {
	case IsCommon(base), len(base) < minSecret, len(segment) < minDigits && version.MatchString(segment):
		return true
	case c == onlyCommon:
		return false
	}
	parts := split(segment)
	return 0 < len(parts) && len(parts) <= maxParts && !slices.ContainsFunc(parts, func(one string) bool {
		return !number.MatchString(one) && (!word.MatchString(one) || !c.isWord(strings.ToLower(one)))
	})
}

// isWord reports whether lower-case letters are a word. The relay does not know all words. It takes letters for one that follow each other as
// they do in words.
func (c caution) isWord(text string) bool {
	if IsCommon(text) || pathWords[text] {
		return true
	}
	unseen := 0
	for triple := range threes(text) {
		if !triples[triple] {
			unseen++
		}
	}
	return c == words && minSecret <= len(text) && len(text) <= maxGuessed && unseen <= 1
}

// split cuts a name into its words: at separators, and before the upper-case letters of camelCase.
func split(name string) (parts []string) {
	for field := range strings.FieldsFuncSeq(name, func(c rune) bool { return strings.ContainsRune("-_.", c) }) {
		start := 0
		for i, c := range field {
			if unicode.IsUpper(c) && i > start {
				parts = append(parts, field[start:i])
				start = i
			}
		}
		parts = append(parts, field[start:])
	}
	return parts
}

// cautionOf is the caution that the literal path of a URL needs. rest is the URL behind its "://".
func cautionOf(rest string) caution {
	host, path, _ := strings.Cut(strings.ToLower(rest), "/")
	if at := strings.LastIndex(host, "@"); at >= 0 {
		host = host[at+1:]
	}
	for _, service := range []string{"hook", "ntfy.", "maker.ifttt.", "api.telegram.", "chat.googleapis."} {
		if strings.Contains(host, service) {
			return listed
		}
	}
	if path, _, _ = strings.Cut(path, "?"); strings.Contains(path, "hook") {
		return listed
	}
	return words
}
