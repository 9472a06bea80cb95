package httpsink

import "testing"

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
