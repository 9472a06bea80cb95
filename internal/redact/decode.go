package redact

import (
	"html"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// layer is a text as it is, or decoded once or twice: a server may escape what it repeats, and quote the result in a JSON
// text. A secret that a server has escaped, whichever characters it escapes, stands in a layer as it is.
type layer struct {
	text    string
	of      *layer // what it was decoded from; nil for the text as it is
	escapes []escape
	// isCut reports that the text ended within an escape, which is left out.
	isCut bool
}

// escape is one character in a layer, and what stands for it in the layer that it was decoded from.
type escape struct{ start, end, from, to int }

// syntax is one way to escape. decode is called at each character of lead. It returns the character that is escaped there
// and the length of the escape, which is 0 if there is none. isOpen reports that the text ends within the escape.
type syntax struct {
	lead   string
	decode func(text string) (char string, n int, isOpen bool)
}

// syntaxes do not mix: what one of them escapes may contain what another one takes for an escape.
var syntaxes = []syntax{{"%", percent}, {"+%", form}, {`\`, backslash}, {"&", entity}}

// depth is how often a text may have been escaped.
const depth = 2

// eachLayer calls look for the layers of a text, the text as it is first. mayBeCut says that more text may have followed.
func eachLayer(text string, mayBeCut bool, look func(*layer)) {
	(&layer{text: text}).each(depth, mayBeCut, look)
}

func (l *layer) each(depth int, mayBeCut bool, look func(*layer)) {
	look(l)
	if depth == 0 {
		return
	}
	for _, s := range syntaxes {
		if decoded := l.decode(s, mayBeCut); decoded != nil {
			decoded.each(depth-1, mayBeCut, look)
		}
	}
}

// decode returns the layer decoded, or nil if it has nothing to decode: no escape, or not the first of lead.
func (l *layer) decode(s syntax, mayBeCut bool) *layer {
	if strings.IndexByte(l.text, s.lead[0]) < 0 {
		return nil
	}
	decoded := &layer{of: l, isCut: l.isCut}
	var b strings.Builder
	kept := 0 // the text until there is in b
	for at := 0; ; {
		found := strings.IndexAny(l.text[at:], s.lead)
		if found < 0 {
			break
		}
		at += found
		char, n, isOpen := s.decode(l.text[at:])
		if isOpen && (mayBeCut || l.isCut) {
			b.WriteString(l.text[kept:at])
			kept, decoded.isCut = len(l.text), true
			break
		}
		if n == 0 {
			at++
			continue
		}
		b.WriteString(l.text[kept:at])
		decoded.escapes = append(decoded.escapes, escape{b.Len(), b.Len() + len(char), at, at + n})
		b.WriteString(char)
		at += n
		kept = at
	}
	if kept == 0 {
		return nil
	}
	b.WriteString(l.text[kept:])
	decoded.text = b.String()
	return decoded
}

// source returns the part of the text as it is from which the part [start, end) of the layer was decoded.
func (l *layer) source(start, end int) (from, to int) {
	if l.of == nil {
		return start, end
	}
	return l.of.source(l.position(start, false), l.position(end, true))
}

// position is where a position stands in the layer that this one was decoded from. Within an escape it is the
// escape's beginning, or its end.
func (l *layer) position(at int, end bool) int {
	i := sort.Search(len(l.escapes), func(i int) bool { return l.escapes[i].start > at }) - 1
	if i < 0 {
		return at
	}
	switch e := l.escapes[i]; {
	case at >= e.end:
		return at - e.end + e.to
	case at > e.start && end:
		return e.to
	default:
		return e.from
	}
}

// percent decodes %2F.
func percent(text string) (char string, n int, isOpen bool) { return hex(text, 1, 2) }

// form decodes %2F, and a blank that is written as +.
func form(text string) (char string, n int, isOpen bool) {
	if text[0] == '+' {
		return " ", 1, false
	}
	return percent(text)
}

// hex decodes that many digits behind the first characters: two are a byte, more are a code point.
func hex(text string, behind, digits int) (char string, n int, isOpen bool) {
	end := behind + digits
	given := text[behind:min(end, len(text))]
	if strings.Trim(given, "0123456789abcdefABCDEF") != "" {
		return "", 0, false
	}
	if len(given) < digits {
		return "", 0, true
	}
	value, err := strconv.ParseUint(given, 16, 32)
	if err != nil {
		return "", 0, false
	}
	if digits == 2 {
		return string([]byte{byte(value)}), end, false
	}
	return string(rune(value)), end, false
}

// backslashed are the characters that have a letter behind the backslash.
var backslashed = map[byte]string{'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v"}

// backslash decodes the escapes of JSON and of programming languages: \" \n \u002B \U0001F600 \x2b \053 \/.
func backslash(text string) (char string, n int, isOpen bool) {
	if len(text) == 1 {
		return "", 0, true
	}
	switch c := text[1]; {
	case c == 'u':
		return utf16Escape(text)
	case c == 'U':
		return hex(text, 2, 8)
	case c == 'x':
		return hex(text, 2, 2)
	case '0' <= c && c <= '7':
		if len(text) < 4 {
			return "", 0, true
		}
		value, err := strconv.ParseUint(text[1:4], 8, 8)
		if err != nil {
			return "", 0, false
		}
		return string([]byte{byte(value)}), 4, false
	case backslashed[c] != "":
		return backslashed[c], 2, false
	case ' ' <= c && c < utf8.RuneSelf && !isAlphanumeric(c):
		return text[1:2], 2, false
	}
	return "", 0, false
}

// utf16Escape decodes \u002B, and characters that are two of these.
func utf16Escape(text string) (char string, n int, isOpen bool) {
	char, n, isOpen = hex(text, 2, 4)
	if n == 0 {
		return char, n, isOpen
	}
	first, _ := strconv.ParseUint(text[2:6], 16, 32)
	if !utf16.IsSurrogate(rune(first)) {
		return char, n, false
	}
	rest := text[n:]
	if !strings.HasPrefix(rest, `\u`) {
		return char, n, len(rest) < 2
	}
	_, more, isOpen := hex(rest, 2, 4)
	if more == 0 {
		return char, n, isOpen
	}
	second, _ := strconv.ParseUint(rest[2:6], 16, 32)
	return string(utf16.DecodeRune(rune(first), rune(second))), n + more, false
}

// maxEntity is more than the length of the longest entity of HTML.
const maxEntity = 40

// entity decodes the entities of HTML and XML: &quot; &#39; &#x2F;.
func entity(text string) (char string, n int, isOpen bool) {
	n = 1
	if strings.HasPrefix(text, "&#") {
		n = 2
	}
	for n < len(text) && n < maxEntity && isAlphanumeric(text[n]) {
		n++
	}
	isOpen = n == len(text)
	if n < len(text) && text[n] == ';' {
		n++
	}
	char = html.UnescapeString(text[:n])
	if char == text[:n] {
		return "", 0, isOpen
	}
	// Without a semicolon, letters may follow.
	if _, size := utf8.DecodeRuneInString(char); strings.HasSuffix(text[:n], char[size:]) {
		char, n = char[:size], n-len(char[size:])
	}
	return char, n, isOpen
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// span is a part of a text.
type span struct{ from, to int }

// hide replaces these parts of a text. Those that overlap are one.
func hide(text string, parts []span) string {
	if len(parts) == 0 {
		return text
	}
	slices.SortFunc(parts, func(a, b span) int { return a.from - b.from })
	var b strings.Builder
	shown := 0
	for i := 0; i < len(parts); {
		part := parts[i]
		for i++; i < len(parts) && parts[i].from < part.to; i++ {
			part.to = max(part.to, parts[i].to)
		}
		b.WriteString(text[shown:part.from])
		b.WriteString(Hidden)
		shown = part.to
	}
	return b.String() + text[shown:]
}
