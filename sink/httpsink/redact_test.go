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
		"https://api.example":         nil,
		"https://api.example/":        nil,
		"https://api.example/events":  {"/events", `\/events`},
		"https://api.example/v1/lead": {"/v1/lead", `\/v1\/lead`, "v1/lead", `v1\/lead`, "/lead", `\/lead`},
		"https://api.example/v1/0123456789abcdef/{topic}/x": {
			"/v1/0123456789abcdef", `\/v1\/0123456789abcdef`, "v1/0123456789abcdef", `v1\/0123456789abcdef`, "/0123456789abcdef", `\/0123456789abcdef`, "0123456789abcdef",
		},
		"https://hooks.example/catch/12345/abcde1": {
			"/catch/12345/abcde1", `\/catch\/12345\/abcde1`, "catch/12345/abcde1", `catch\/12345\/abcde1`,
			"/12345/abcde1", `\/12345\/abcde1`, "12345/abcde1", `12345\/abcde1`, "/abcde1", `\/abcde1`, "12345", "abcde1",
		},
		"https://api.example/qWeRtYuIoP":                         {"/qWeRtYuIoP", `\/qWeRtYuIoP`, "qWeRtYuIoP"},
		"https://api.example/?T0KEN12345":                        {"T0KEN12345"},
		"https://api.example/{topic}?a=1&T0KEN1":                 {"T0KEN1"},
		"https://api.example/{topic}?for={key}&sig=a%2Fb%2Fc%20": {"a%2Fb%2Fc%20", "a/b/c "},
	} {
		if got := PathSecrets(template); !slices.Equal(got, want) {
			t.Errorf("%s: got %q; want %q", template, got, want)
		}
	}
}
