package httpsink

import (
	"slices"
	"testing"
)

func TestMaskPath(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"https://hooks.example/services/T001/B001/abcd": "https://hooks.example/***",
		"https://api.example:8443/v1/{topic}?key=abcd":  "https://api.example:8443/***",
		"http://api.example?key=abcd":                   "http://api.example/***",
		"http://api.example/":                           "http://api.example/",
		"http://api.example":                            "http://api.example",
	} {
		if got := MaskPath(url); got != want {
			t.Errorf("%s: got %s; want %s", url, got, want)
		}
	}
}

func TestPathSecrets(t *testing.T) {
	t.Parallel()
	for template, want := range map[string][]string{
		"https://api.example":                                    nil,
		"https://api.example/":                                   nil,
		"https://api.example/v1/leads":                           {"v1/leads"},
		"https://api.example/v1/0123456789abcdef/{topic}/x":      {"v1/0123456789abcdef", "0123456789abcdef"},
		"https://api.example/{topic}?for={key}&sig=a%2Fb%2Fc%20": {"?for=", "&sig=a%2Fb%2Fc%20", "&sig=a/b/c ", "a%2Fb%2Fc%20", "a/b/c "},
	} {
		if got := PathSecrets(template); !slices.Equal(got, want) {
			t.Errorf("%s: got %q; want %q", template, got, want)
		}
	}
}
