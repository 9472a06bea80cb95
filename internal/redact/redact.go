// Package redact replaces secrets in texts for people: a server may repeat in its answer what it was sent.
//
// A secret is replaced wherever it appears, in each form in which a server may write it. Two kinds are not,
// because replacing them would make texts unreadable and protect nothing: values shorter than 4 bytes, and
// common words, which are the words of the relay's own texts (words.txt).
package redact

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"html"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Hidden stands for a secret.
const Hidden = "***"

const (
	// minSecret is the length in bytes of the shortest secret.
	minSecret = 4
	// minEverywhere is the length from which a secret of letters, or of digits, is also replaced within
	// longer words.
	minEverywhere = 8
	// minDigits is the same for digits only: shorter numbers are ids and ports.
	minDigits = 16
)

// Redactor replaces secrets. The zero Redactor replaces nothing. It is safe for concurrent use.
type Redactor struct {
	replacer *strings.Replacer
	// forms are those that replacer replaces, and behind them words. Both have the longest first.
	forms      []string
	everywhere int      // how many forms replacer replaces
	words      []string // replaced only as whole words
}

// New returns a Redactor for these secrets. public are names that texts must show: hosts, tables, pipelines. A
// secret that equals one of them stays visible, and one that is part of one is replaced as a whole word only.
func New(secrets, public []string) *Redactor {
	var everywhere, words []string
	for _, s := range secrets {
		s = strings.TrimSpace(s)
		switch {
		case len(s) < minSecret || IsCommon(s) || isNumber(s) && len(s) < minEverywhere || containsFold(public, s):
		case isWord(s) || isPart(public, s):
			words = append(words, forms(s)...)
		default:
			everywhere = append(everywhere, forms(s)...)
		}
	}
	// Longest first: a secret may be part of another.
	longestFirst := func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) }
	slices.SortFunc(everywhere, longestFirst)
	slices.SortFunc(words, longestFirst)
	everywhere, words = slices.Compact(everywhere), slices.Compact(words)
	r := &Redactor{forms: slices.Concat(everywhere, words), everywhere: len(everywhere), words: words}
	var pairs []string
	for _, form := range everywhere {
		pairs = append(pairs, form, Hidden)
	}
	if len(pairs) > 0 {
		r.replacer = strings.NewReplacer(pairs...)
	}
	return r
}

// ellipses stand where a server or a library has cut a text: gojq writes `string ("sk_live_9f ...")`.
var ellipses = []string{"...", "…"}

// Text returns the text without secrets, and without the first part of a secret before an ellipsis.
func (r *Redactor) Text(text string) string {
	text = r.whole(text)
	for _, ellipsis := range ellipses {
		parts := strings.Split(text, ellipsis)
		for i, part := range parts[:len(parts)-1] {
			kept := strings.TrimRight(part, " ")
			parts[i] = r.hideFirstPart(kept) + part[len(kept):]
		}
		text = strings.Join(parts, ellipsis)
	}
	return text
}

// Beginning is Text for the beginning of a longer text, which may end within a secret.
func (r *Redactor) Beginning(text string) string { return r.hideFirstPart(r.Text(text)) }

func (r *Redactor) whole(text string) string {
	if r.replacer != nil {
		text = r.replacer.Replace(text)
	}
	for _, word := range r.words {
		text = replaceWord(text, word)
	}
	return text
}

// hideFirstPart replaces the first part of a secret, of at least minSecret bytes, at the end of a text.
func (r *Redactor) hideFirstPart(text string) string {
	start := len(text)
	for i, form := range r.forms {
		for n := min(len(form)-1, len(text)); n >= minSecret && len(text)-n < start; n-- {
			before, found := strings.CutSuffix(text, form[:n])
			if !found || IsCommon(form[:n]) {
				continue
			}
			if last, _ := utf8.DecodeLastRuneInString(before); i < r.everywhere || !inWord(last) {
				start = len(before)
			}
		}
	}
	if start == len(text) {
		return text
	}
	return text[:start] + Hidden
}

//go:embed words.txt
var wordList string

var common = func() map[string]bool {
	words := map[string]bool{}
	for word := range strings.Lines(wordList) {
		words[strings.TrimSpace(word)] = true
	}
	return words
}()

// IsCommon reports whether s is a word of the relay's own texts.
func IsCommon(s string) bool { return common[strings.ToLower(s)] }

// isWord reports whether s is short and only letters, or only digits, so that it may be a part of harmless words.
func isWord(s string) bool {
	return len(s) < minEverywhere && !strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsLetter(c) }) ||
		len(s) < minDigits && isNumber(s)
}

func isNumber(s string) bool { return strings.Trim(s, "0123456789") == "" }

func containsFold(names []string, s string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, s) })
}

func isPart(names []string, s string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, s) })
}

// forms are the ways in which a server may write a secret: as it is, and escaped once or twice, as a request is that
// a server quotes in a JSON text.
func forms(s string) []string {
	all := escaped(s)
	for _, once := range all {
		all = append(all, escaped(once)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// escaped is a text as it is, and escaped for JSON, for a URL, and for HTML.
func escaped(s string) []string {
	inJSON, err := json.Marshal(s)
	if err != nil { // a string always has JSON
		panic(err)
	}
	query := url.QueryEscape(s)
	all := []string{
		s, unquote(strconv.Quote(s)), unquote(strconv.QuoteToASCII(s)), unquote(string(inJSON)), strings.ReplaceAll(s, "/", `\/`),
		query, strings.ReplaceAll(query, "+", "%20"), url.PathEscape(s), lowerEscapes(query), lowerEscapes(url.PathEscape(s)),
		html.EscapeString(s),
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func unquote(s string) string { return s[1 : len(s)-1] }

// lowerEscapes writes %2F as %2f.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i:], strings.ToLower(string(b[i:i+3])))
		}
	}
	return string(b)
}

// replaceWord replaces a word where no letter, digit or underscore is next to it.
func replaceWord(text, word string) string {
	var b strings.Builder
	rest := text
	for {
		at := strings.Index(rest, word)
		if at < 0 {
			break
		}
		before, _ := utf8.DecodeLastRuneInString(text[:len(text)-len(rest)+at])
		after, _ := utf8.DecodeRuneInString(rest[at+len(word):])
		b.WriteString(rest[:at])
		if inWord(before) || inWord(after) {
			b.WriteString(word)
		} else {
			b.WriteString(Hidden)
		}
		rest = rest[at+len(word):]
	}
	if rest == text {
		return text
	}
	return b.String() + rest
}

func inWord(c rune) bool { return c == '_' || unicode.IsLetter(c) || unicode.IsDigit(c) }
