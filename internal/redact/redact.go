// Package redact replaces secrets in texts for people: a server may repeat in its answer what it was sent.
//
// A secret is replaced wherever it appears, also if a server has escaped it, once or twice, and in base64. Two kinds are not,
// because replacing them would make texts unreadable and protect nothing: values shorter than 4 bytes, and
// common words, which are the words of the relay's own texts (words.txt).
package redact

import (
	_ "embed"
	"encoding/base64"
	"slices"
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
	// longer words, and in base64.
	minEverywhere = 8
	// minDigits is the same for digits only: shorter numbers are ids and ports.
	minDigits = 16
)

// Redactor replaces secrets. The zero Redactor replaces nothing. It is safe for concurrent use.
type Redactor struct {
	everywhere []string
	words      []string // replaced only as whole words
}

// New returns a Redactor for these secrets. public are names that texts must show: hosts, tables, pipelines. A
// secret that equals one of them stays visible, and one that is part of one is replaced as a whole word only.
func New(secrets, public []string) *Redactor {
	r := &Redactor{}
	for _, s := range secrets {
		s = strings.TrimSpace(s)
		switch {
		case len(s) < minSecret || IsCommon(s) || isNumber(s) && len(s) < minEverywhere || containsFold(public, s):
		case isWord(s) || isPart(public, s):
			r.words = append(r.words, s)
		default:
			r.everywhere = append(r.everywhere, s)
		}
	}
	for _, s := range slices.Concat(r.everywhere, r.words) {
		if len(s) >= minEverywhere {
			r.everywhere = append(r.everywhere, inBase64(s)...)
		}
	}
	slices.Sort(r.everywhere)
	slices.Sort(r.words)
	r.everywhere, r.words = slices.Compact(r.everywhere), slices.Compact(r.words)
	return r
}

// inBase64 returns the secret in base64, and what the base64 of each longer text that contains it has in common: user:password, for example, wherever
// the password begins. Of the characters next to that, one at each end has some bits of the secret.
func inBase64(secret string) (all []string) {
	for _, alphabet := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		all = append(all, alphabet.EncodeToString([]byte(secret)), alphabet.WithPadding(base64.NoPadding).EncodeToString([]byte(secret)))
		for before := range 3 {
			text := append(make([]byte, before), secret...)
			all = append(all, alphabet.EncodeToString(text)[(before*8+5)/6:len(text)*8/6])
		}
	}
	return all
}

func (r *Redactor) isEmpty() bool { return len(r.everywhere) == 0 && len(r.words) == 0 }

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
	if r.isEmpty() {
		return text
	}
	var parts []span
	eachLayer(text, false, func(l *layer) {
		for _, secret := range r.everywhere {
			parts = l.find(secret, false, parts)
		}
		for _, secret := range r.words {
			parts = l.find(secret, true, parts)
		}
	})
	return hide(text, parts)
}

// find adds the parts of the text that are the secret: as a word, where no letter, digit or underscore is next to it.
func (l *layer) find(secret string, asWord bool, parts []span) []span {
	for at := 0; ; at++ {
		next := strings.Index(l.text[at:], secret)
		if next < 0 {
			return parts
		}
		at += next
		end := at + len(secret)
		before, _ := utf8.DecodeLastRuneInString(l.text[:at])
		after, _ := utf8.DecodeRuneInString(l.text[end:])
		if !asWord || !inWord(before) && !inWord(after) {
			from, to := l.source(at, end)
			parts = append(parts, span{from, to})
		}
	}
}

// hideFirstPart replaces the first part of a secret, of at least minSecret bytes, at the end of a text.
func (r *Redactor) hideFirstPart(text string) string {
	if r.isEmpty() {
		return text
	}
	start := len(text)
	eachLayer(text, true, func(l *layer) {
		for _, secret := range r.everywhere {
			start = min(start, l.firstPart(secret, false, len(text)))
		}
		for _, secret := range r.words {
			start = min(start, l.firstPart(secret, true, len(text)))
		}
	})
	if start == len(text) {
		return text
	}
	return text[:start] + Hidden
}

// firstPart returns where in the text the first part of the secret begins that ends the layer, or none.
func (l *layer) firstPart(secret string, asWord bool, none int) int {
	least := minSecret
	if l.isCut {
		least-- // the escape that is left out
	}
	for n := min(len(secret)-1, len(l.text)); n >= least; n-- {
		before, found := strings.CutSuffix(l.text, secret[:n])
		if !found || IsCommon(secret[:n]) {
			continue
		}
		if last, _ := utf8.DecodeLastRuneInString(before); !asWord || !inWord(last) {
			from, _ := l.source(len(before), len(l.text))
			return from
		}
	}
	return none
}

//go:embed words.txt
var wordList string

var common = readWords(wordList)

func readWords(list string) map[string]bool {
	all := map[string]bool{}
	for word := range strings.Lines(list) {
		all[strings.TrimSpace(word)] = true
	}
	return all
}

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

func inWord(c rune) bool { return c == '_' || unicode.IsLetter(c) || unicode.IsDigit(c) }
