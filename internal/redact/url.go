package redact

import (
	"net/url"
	"slices"
	"strings"
)

// SplitURL cuts a URL into its scheme, its user with the password, its hosts, and the rest. A URL without "://"
// is all scheme.
//
// In an http URL, an @ of the path belongs to the path (Teams has one). In others, everything before the last @
// may belong to a password, even if the syntax of URLs says that the password ended earlier.
func SplitURL(text string) (scheme, user, hosts, rest string) {
	scheme, rest, isURL := strings.Cut(text, "://")
	if !isURL {
		return scheme, "", "", ""
	}
	authority := rest
	end := strings.IndexAny(rest, "/?#")
	if end >= 0 {
		authority = rest[:end]
	}
	at := strings.LastIndex(authority, "@")
	if !strings.HasPrefix(scheme, "http") || at < 0 && isCredentials(authority) {
		at = strings.LastIndex(rest, "@")
	}
	if at >= 0 {
		user, rest = rest[:at], rest[at+1:]
	}
	if end = strings.IndexAny(rest, "/?#"); end < 0 {
		end = len(rest)
	}
	return scheme, user, rest[:end], rest[end:]
}

// isCredentials reports whether the beginning of a URL is rather "user:12" of a password "12/34" than a host.
func isCredentials(authority string) bool {
	host, _, found := strings.Cut(authority, ":")
	return found && host != "localhost" && !strings.ContainsAny(host, ".[")
}

// The shortest segments of a path that count as a token: one with a digit or with letters of both cases, and any
// other one. Shorter ones are often words.
const (
	minToken   = 5
	minSegment = 16
)

// PathSecrets are what a server may repeat of the path and the query of an HTTP URL, which may contain {topic} and
// {key}. written is the URL with Hidden in the place of each expanded value; "" if all of it was expanded. A path counts from any
// segment on, unless all of its segments are plain. A segment counts alone if it
// looks like a token, and so do its parts. Values of the query count always, but for numbers and dates. Each is
// there as written and unescaped.
func PathSecrets(template, written string) (all []string) {
	add := func(secret string) {
		for _, unescape := range []func(string) (string, error){keep, url.PathUnescape, url.QueryUnescape} {
			if form, err := unescape(secret); err == nil && len(form) >= minSecret && !slices.Contains(all, form) {
				all = append(all, form)
			}
		}
	}
	_, rest, _ := strings.Cut(template, "://")
	start := strings.IndexAny(rest, "/?#")
	if start < 0 {
		return nil
	}
	path, query, _ := strings.Cut(rest[start:], "?")
	for _, segments := range segmentsOf(path, cautionOf(rest), written) {
		for i := range segments[1:] {
			suffix := segments[1+i:]
			if !slices.ContainsFunc(suffix, segment.isUnusual) {
				continue
			}
			add("/" + join(suffix))
			if len(suffix) > 1 {
				add(join(suffix))
			}
		}
		for _, one := range segments {
			for _, part := range append(strings.FieldsFunc(one.text, isSeparator), one.text) {
				if one.isToken(part) {
					add(part)
				}
			}
		}
	}
	for parameter := range strings.SplitSeq(query, "&") {
		name, value, found := strings.Cut(parameter, "=")
		if !found {
			value = name
		}
		for _, literal := range Literals(value) {
			if !onlyCommon.isPlain(literal) {
				add(literal)
			}
		}
	}
	return all
}

func keep(s string) (string, error) { return s, nil }

func isSeparator(c rune) bool { return strings.ContainsRune("@:;,=~.", c) }

// segment is a part of a path between two slashes, or between a slash and a placeholder.
type segment struct {
	text string
	caution
}

// segmentsOf cuts the parts of a path that are between its placeholders into segments. A segment with an expanded value needs more caution.
func segmentsOf(path string, c caution, written string) (all [][]segment) {
	_, rest, _ := strings.Cut(written, "://")
	written, _, _ = strings.Cut(rest[strings.IndexByte(rest+"/", '/'):], "?")
	asWritten := Literals(written)
	literals := Literals(path)
	for i, literal := range literals {
		texts := strings.Split(strings.TrimSuffix(literal, "/"), "/")
		segments := make([]segment, len(texts))
		for j, text := range texts {
			segments[j] = segment{text, onlyCommon}
			if len(asWritten) != len(literals) {
				continue
			}
			if written := strings.Split(asWritten[i], "/"); j < len(written) && written[j] == text {
				segments[j].caution = c
			}
		}
		all = append(all, segments)
	}
	return all
}

func join(segments []segment) string {
	texts := make([]string, len(segments))
	for i, s := range segments {
		texts[i] = s.text
	}
	return strings.Join(texts, "/")
}

// MaskPath hides what may be secret in the path of an HTTP URL, and its query. Hidden in it stays.
func MaskPath(url string) string {
	scheme, rest, found := strings.Cut(url, "://")
	start := strings.IndexAny(rest, "/?#")
	if !found || start < 0 {
		return url
	}
	c := cautionOf(rest)
	path, query := rest[start:], ""
	if end := strings.IndexAny(path, "?#"); end >= 0 {
		path, query = path[:end], path[end:end+1]+Hidden
	}
	segments := strings.Split(path, "/")
	for i, text := range segments {
		for _, literal := range Literals(text) {
			if (segment{literal, c}).isUnusual() {
				segments[i] = Hidden
			}
		}
	}
	return scheme + "://" + rest[:start] + strings.Join(segments, "/") + query
}

func (s segment) isUnusual() bool { return !s.isPlain(s.text) }

// isToken reports whether a part of the segment looks like a token, and not like a word or a version.
func (s segment) isToken(part string) bool {
	mixedCase := func(s string) bool { return strings.ToLower(s) != s && strings.ToUpper(s) != s }
	return !s.isPlain(part) && (len(part) >= minSegment ||
		len(part) >= minToken && (strings.ContainsAny(part, "0123456789") || mixedCase(part[1:])))
}

// Literals are the parts of a template between its placeholders, which are not secret.
func Literals(template string) []string {
	const mark = "\x00"
	return strings.Split(strings.NewReplacer("{topic}", mark, "{key}", mark).Replace(template), mark)
}
