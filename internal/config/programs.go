package config

import (
	"encoding/base64"
	"errors"
	"net/url"
	"strings"
)

// lines is text that may have several lines.
func lines(into *string, what string) scalar {
	return scalar{what: what, kind: asText, lines: true, multiline: true, set: func(in input) error {
		if strings.TrimSpace(in.text) == "" {
			return unfit("")
		}
		*into = in.text
		return nil
	}}
}

// program is a jq program.
func program(into *string) scalar { return lines(into, "a jq program") }

// columnName is a column's name as the database has it, whatever that is.
func columnName(into *string) scalar {
	return text(into, "a column's name", func(s string) bool { return s != "" && len(s) <= 63 })
}

var errURL = errors.New("is no URL, http://host or https://host was expected")

func httpURL(into *Secret) scalar {
	return scalar{what: "a URL like https://host/path", kind: asText, hide: true, url: true, set: func(in input) error {
		u, err := url.Parse(in.text)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			return errURL
		}
		*into = newSecretURL(in)
		return nil
	}}
}

func proxyURL(into *Secret) scalar { return httpURL(into) }
func tokenURL(into *Secret) scalar { return httpURL(into) }

// signingSecret is a key of Standard Webhooks.
func signingSecret(into *Secret) scalar {
	return scalar{what: "whsec_ and 24 to 64 bytes in base64", kind: asText, hide: true, set: func(in input) error {
		text, ok := strings.CutPrefix(in.text, "whsec_")
		key, err := base64.StdEncoding.DecodeString(text)
		if !ok || err != nil || len(key) < 24 || len(key) > 64 {
			return unfit("")
		}
		*into = newSecret(in.text)
		return nil
	}}
}
