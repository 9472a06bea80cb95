package redact

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"html"
	"html/template"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// encoders are how libraries and servers escape a text.
var encoders = []struct {
	name   string
	encode func(string) string
}{
	{"nothing", func(s string) string { return s }},
	{"url.QueryEscape", url.QueryEscape},
	{"url.PathEscape", url.PathEscape},
	{"URL.Path", func(s string) string { return (&url.URL{Path: "/" + s}).EscapedPath()[1:] }},
	{"Python's urllib.parse.quote", each(func(c rune) string {
		if c == '/' || strings.ContainsRune("_.-~", c) || c < utf8.RuneSelf && isAlphanumeric(byte(c)) {
			return string(c)
		}
		return percentUpper(c)
	})},
	{"each byte in a URL, lower case", each(func(c rune) string { return strings.ToLower(percentUpper(c)) })},
	{"json.Marshal", jsonText},
	{"JSON with \\/", func(s string) string { return strings.ReplaceAll(jsonText(s), "/", `\/`) }},
	{".NET's JavaScriptEncoder", each(func(c rune) string {
		if c == '\\' {
			return `\\`
		}
		if c < utf8.RuneSelf && !strings.ContainsRune("\"&'+<>`", c) {
			return string(c)
		}
		return units(c, "%04X")
	})},
	{"each character in JSON", each(func(c rune) string { return units(c, "%04x") })},
	{"strconv.Quote", func(s string) string { return unquote(strconv.Quote(s)) }},
	{"strconv.QuoteToASCII", func(s string) string { return unquote(strconv.QuoteToASCII(s)) }},
	{"regexp.QuoteMeta", regexp.QuoteMeta},
	{"C, octal", each(func(c rune) string {
		if c < utf8.RuneSelf && isAlphanumeric(byte(c)) {
			return string(c)
		}
		return bytesOf(c, `\%03o`)
	})},
	{"template.JSEscapeString", template.JSEscapeString},
	{"html.EscapeString", html.EscapeString},
	{"template.HTMLEscapeString", template.HTMLEscapeString},
	{"xml.EscapeText", func(s string) string {
		var b strings.Builder
		if err := xml.EscapeText(&b, []byte(s)); err != nil {
			panic(err)
		}
		return b.String()
	}},
	{"PHP's htmlspecialchars", func(s string) string {
		return strings.NewReplacer("&", "&amp;", `"`, "&quot;", "'", "&#039;", "<", "&lt;", ">", "&gt;").Replace(s)
	}},
	{"Python's html.escape", func(s string) string {
		return strings.NewReplacer("&", "&amp;", `"`, "&quot;", "'", "&#x27;", "<", "&lt;", ">", "&gt;").Replace(s)
	}},
	{"mustache", func(s string) string {
		return strings.NewReplacer("&", "&amp;", `"`, "&quot;", "'", "&#39;", "<", "&lt;", ">", "&gt;", "/", "&#x2F;", "`", "&#x60;", "=", "&#x3D;").Replace(s)
	}},
	{"HTML, decimal", each(func(c rune) string {
		if c < utf8.RuneSelf && isAlphanumeric(byte(c)) {
			return string(c)
		}
		return fmt.Sprintf("&#%d;", c)
	})},
}

func each(encode func(rune) string) func(string) string {
	return func(s string) string {
		var b strings.Builder
		for _, c := range s {
			b.WriteString(encode(c))
		}
		return b.String()
	}
}

func bytesOf(c rune, format string) (s string) {
	for _, one := range []byte(string(c)) {
		s += fmt.Sprintf(format, one)
	}
	return s
}

func percentUpper(c rune) string { return bytesOf(c, "%%%02X") }

func units(c rune, format string) (s string) {
	for _, unit := range utf16.Encode([]rune{c}) {
		s += fmt.Sprintf(`\u`+format, unit)
	}
	return s
}

func unquote(s string) string { return s[1 : len(s)-1] }

func jsonText(s string) string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return unquote(string(text))
}

// expectHidden expects the Redactor to hide the secret in a text that is encoded by one or two encoders: as a whole, and
// its first part where the text is cut.
func expectHidden(t *testing.T, secret, before, after string) {
	t.Helper()
	r := New([]string{secret}, nil)
	for _, inner := range encoders {
		for _, outer := range encoders {
			encode := func(s string) string { return outer.encode(inner.encode(s)) }
			got := r.Text(encode(before + secret + after))
			if want := encode(before) + Hidden + encode(after); got != want {
				t.Errorf("%s of %s: %s becomes %s, want %s", outer.name, inner.name, encode(before+secret+after), got, want)
			}
		}
	}
}

func TestRedactor_Encoders(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{
		"aGVsbG8+d29y/bGQ/Zm9v+YmFyCg==", `p"a'ss w/rd<é>&`, `back\slash\\and\n`, "100%2Fof%the%25", "a+b c&amp;d&#39;e", "häß€😀-._~`=()!*#$^|[]{}?:;,@",
	} {
		expectHidden(t, secret, "it said: <", "> & \"that's\" all / 100%, +1")
	}
}

// TestRedactor_OtherForms has escapes that no encoder here writes.
func TestRedactor_OtherForms(t *testing.T) {
	t.Parallel()
	r := New([]string{`ab+"cd'/e&f=123`}, nil)
	for _, form := range []string{
		`ab\u002B\u0022cd\u0027/e\u0026f=123`, `ab&#43;&quot;cd&apos;&sol;e&amp;f&equals;123`, `ab+&#0034;cd&#039;/e&amp;f=123`, `ab+&#34cd&#x0027;/e&ampf=123`,
		`ab\x2b\x22cd\x27\x2Fe\x26f\x3D123`, `ab%252B%2522cd%2527/e%2526f%253D123`, `ab\\u002B\\u0022cd\\u0027/e\\u0026f=123`, `ab+\\\"cd'\\\/e&f=123`,
		`ab&amp;#43;&amp;quot;cd&amp;#39;/e&amp;amp;f=123`, `ab\u0026#43;\u0026quot;cd\u0026#39;/e\u0026amp;f=123`, `ab%26%2343%3b%26quot%3Bcd%26%2339;/e%26amp;f=123`,
	} {
		if got := r.Text("it said " + form + "!"); got != "it said ***!" {
			t.Errorf("%s becomes %q", form, got)
		}
	}
}

// TestRedactor_FirstPartEncoded cuts the escaped secret at each byte.
func TestRedactor_FirstPartEncoded(t *testing.T) {
	t.Parallel()
	const secret = "aG+s/G8\"d'9y&bGQ=="
	r := New([]string{secret}, nil)
	for _, inner := range encoders {
		for _, outer := range encoders {
			encode := func(s string) string { return outer.encode(inner.encode(s)) }
			from, whole := len(encode(secret[:minSecret])), encode(secret)
			for n := from; n < len(whole); n++ {
				// Behind the last character an entity's semicolon may be cut.
				rest, found := strings.CutPrefix(r.Beginning("it is "+whole[:n]), "it is "+Hidden)
				if !found || len(rest) >= len(`\u003b`) || n < len(encode(secret[:len(secret)-1])) && rest != "" {
					t.Errorf("%s of %s: %s leaves %s", outer.name, inner.name, whole[:n], rest)
				}
			}
		}
	}
}

// representable is the part of a text that every encoder represents, and that is hidden for no other reason, not even with another text before or
// behind it.
func representable(text string) string {
	text = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) || strings.ContainsRune("*…\uFFFD", c) {
			return -1
		}
		return c
	}, text)
	for strings.Contains(text, "..") {
		text = strings.ReplaceAll(text, "..", ".")
	}
	return text
}

// FuzzRedactor_Encoders has any secret in any text, encoded as libraries do it.
func FuzzRedactor_Encoders(f *testing.F) {
	f.Add("aGVsbG8+d29y/bGQ=", "it said ", "!")
	f.Add("\xff.7\x00", "it...said *.", "….")
	f.Fuzz(func(t *testing.T, secret, before, after string) {
		secret, before, after = strings.TrimSpace(representable(secret)), representable(before), representable(after)
		for len(secret) < minDigits { // a shorter one is no secret
			secret += "7k+/"
		}
		r := New([]string{secret}, nil)
		for _, inner := range encoders {
			for _, outer := range encoders {
				encode := func(s string) string { return outer.encode(inner.encode(s)) }
				if got := r.Text(encode(before + secret + after)); strings.Contains(got, encode(secret)) && !strings.Contains(encode(before)+encode(after), encode(secret)) {
					t.Errorf("%s of %s: %q becomes %q", outer.name, inner.name, encode(before+secret+after), got)
				}
			}
		}
	})
}

// BenchmarkRedactor has a response of 1 MB without a secret, and one of nothing but escapes.
func BenchmarkRedactor(b *testing.B) {
	secrets := make([]string, 10)
	for i := range secrets {
		secrets[i] = fmt.Sprintf("aGVsbG8+d29y/bGQ%d/Zm9v+YmFyCg==", i)
	}
	r := New(secrets, nil)
	for _, c := range []struct{ name, text string }{
		{"plain", "the quick brown fox jumps over the lazy dog, 12345 times. "},
		{"JSON", `{"id": 17, "error": "invalid \"to\" address", "url": "https://api.example/v1?a=b%20c"}, `},
		{"escapes", `\\\\%2525%26amp%3B&amp;amp;\\u0022+`},
	} {
		b.Run(c.name, func(b *testing.B) {
			text := strings.Repeat(c.text, 1<<20/len(c.text))
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				r.Text(text)
			}
		})
	}
}
