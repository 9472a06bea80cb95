package redact

import (
	"net/url"
	"regexp"
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
// {key}. A path counts from any segment on, unless all of its segments are plain. A segment counts alone if it
// looks like a token, and so do its parts. Values of the query count always, but for numbers and dates. Each is
// there as written and unescaped.
func PathSecrets(template string) (all []string) {
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
	for _, literal := range Literals(path) {
		literal = strings.TrimSuffix(literal, "/")
		for at := range len(literal) {
			if literal[at] != '/' || !slices.ContainsFunc(strings.Split(literal[at+1:], "/"), isUnusual) {
				continue
			}
			add(literal[at:])
			if suffix := literal[at+1:]; strings.Contains(suffix, "/") {
				add(suffix)
			}
		}
		for segment := range strings.SplitSeq(literal, "/") {
			for _, part := range append(strings.FieldsFunc(segment, isSeparator), segment) {
				if isToken(part) {
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
			if !isPlain(literal) {
				add(literal)
			}
		}
	}
	return all
}

func keep(s string) (string, error) { return s, nil }

func isSeparator(c rune) bool { return strings.ContainsRune("@:;,=~.", c) }

var (
	// version matches v2, 1.0, v1beta1, and dates.
	version  = regexp.MustCompile(`(?i)^v?[0-9]+([._-]?(alpha|beta|rc|preview)?[0-9]*)*$`)
	numbered = regexp.MustCompile(`^([A-Za-z]+)[0-9]{1,2}$`)
)

// isPlain reports whether a segment says nothing secret: a common word, with a number or without, a version, a
// date, a short number.
func isPlain(segment string) bool {
	if word := numbered.FindStringSubmatch(segment); word != nil {
		segment = word[1]
	}
	return IsCommon(segment) || len(segment) < minSecret || len(segment) < minDigits && version.MatchString(segment)
}

func isUnusual(segment string) bool { return !isPlain(segment) }

// isToken reports whether a segment of a path looks like a token, and not like a word or a version.
func isToken(segment string) bool {
	mixedCase := func(s string) bool { return strings.ToLower(s) != s && strings.ToUpper(s) != s }
	return !isPlain(segment) && (len(segment) >= minSegment ||
		len(segment) >= minToken && (strings.ContainsAny(segment, "0123456789") || mixedCase(segment[1:])))
}

// Literals are the parts of a template between its placeholders, which are not secret.
func Literals(template string) []string {
	const mark = "\x00"
	return strings.Split(strings.NewReplacer("{topic}", mark, "{key}", mark).Replace(template), mark)
}
