package httpsink

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

const (
	hidden = "***"
	// minSecret is the length below which text is not hidden: hiding it would make errors unreadable
	// and protect nothing.
	minSecret = 4
	// minSegment is the same for one segment of a URL's path, because shorter ones are often words. The
	// path as a whole is hidden too.
	minSegment = 16
)

// MaskPath hides the path and the query of an HTTP URL as a whole: either can be a secret, as in the URL
// of a webhook. Scheme and host stay visible.
func MaskPath(url string) string {
	scheme, rest, _ := strings.Cut(url, "://")
	host, tail := rest, ""
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		host, tail = rest[:end], rest[end:]
	}
	if tail != "" && tail != "/" {
		tail = "/" + hidden
	}
	return scheme + "://" + host + tail
}

// PathSecrets are what a server may repeat of the path and the query of an HTTP URL, which may contain
// {topic} and {key}: all text between the placeholders, long segments, and the values of the query. Each
// is there as written and unescaped.
func PathSecrets(template string) (all []string) {
	add := func(text string, minLength int) {
		for literal := range strings.SplitSeq(placeholders.Replace(text), placeholderMark) {
			if literal = strings.Trim(literal, "/"); len(literal) < minLength {
				continue
			}
			all = append(all, literal)
			for _, unescape := range []func(string) (string, error){url.PathUnescape, url.QueryUnescape} {
				if plain, err := unescape(literal); err == nil && !slices.Contains(all, plain) {
					all = append(all, plain)
				}
			}
		}
	}
	_, rest, _ := strings.Cut(template, "://")
	start := strings.IndexAny(rest, "/?#")
	if start < 0 {
		return nil
	}
	add(rest[start:], minSecret)
	path, query, _ := strings.Cut(rest[start:], "?")
	for segment := range strings.SplitSeq(path, "/") {
		add(segment, minSegment)
	}
	for parameter := range strings.SplitSeq(query, "&") {
		_, value, _ := strings.Cut(parameter, "=")
		add(value, minSecret)
	}
	return all
}

const placeholderMark = "\x00"

var placeholders = strings.NewReplacer("{topic}", placeholderMark, "{key}", placeholderMark)

// MayBeSecret reports whether the value of a header may be secret, which is true of all but a few standard
// headers.
func MayBeSecret(header string) bool {
	return !slices.Contains(publicHeaders, http.CanonicalHeaderKey(header))
}

var publicHeaders = []string{
	"Accept", "Accept-Charset", "Accept-Encoding", "Accept-Language", "Cache-Control", "Content-Encoding", "Content-Language",
	"Content-Type", "Host", headerIdempotency, "Prefer", "User-Agent", "Webhook-Id", "Webhook-Timestamp",
}
