package redissink_test

import (
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
)

func TestNew_URL(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://h":                          "",
		"redis://h:1":                        "",
		"redis://h:1/":                       "",
		"redis://user:p%40ss@h:1/3":          "",
		"redis://:secret@[::1]:1/3":          "",
		"rediss://h":                         "",
		"redis+cluster://a:1,b:2,c":          "",
		"redis+cluster://u:secret@a:1,b:2/0": "",
		"redis+sentinel://a:1,b/main":        "",
		"redis+sentinel://:secret@a:1,b/m/2": "",
		"rediss+cluster://u:secret@a:1,b":    "",
		"rediss+sentinel://a:1,b/main/1":     "",
		"":                                   "unknown scheme",
		"h:6379":                             "unknown scheme",
		"http://h":                           "unknown scheme",
		"redis+other://secret@h":             "unknown scheme",
		"redis+://secret@h":                  "unknown scheme",
		"tls+cluster://secret@h":             "unknown scheme",
		"redis://":                           "host",
		"redis://:secret@":                   "host",
		"redis://a:1,b:2":                    "several hosts",
		"rediss://:secret@a:1,b:2":           "several hosts",
		"redis://h:secret":                   "not a URL",
		"redis://:se/cret@h":                 "not a URL",
		"redis://:se%zzcret@h":               "not a URL",
		"redis+cluster://a:1,b:secret":       "host",
		"redis+cluster://a:1,,b":             "host",
		"redis://h/secret":                   "database",
		"redis://h/-1":                       "database",
		"redis://h/1/2":                      "database",
		"redis+cluster://h/1":                "only database 0",
		"redis+sentinel://h":                 "MASTER",
		"redis+sentinel://:secret@h/":        "MASTER",
		"redis+sentinel://h/main/secret":     "database",
		"redis://h?password=secret":          "parameters",
		"redis://h#secret":                   "parameters",
	} {
		s, err := redissink.New(redissink.Config{URL: url})
		switch {
		case err == nil:
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if want != "" {
				t.Errorf("%q is accepted; want an error that contains %q", url, want)
			}
		case want == "" || !strings.Contains(err.Error(), want):
			t.Errorf("%q: got %v; want an error that contains %q", url, err, want)
		case strings.Contains(err.Error(), "cret"):
			t.Errorf("%q: the error quotes a part of it: %v", url, err)
		}
	}
}

func TestNew_ListsAllErrors(t *testing.T) {
	t.Parallel()
	_, err := redissink.New(redissink.Config{
		URL: "nats://h", Mode: "strem", MaxLen: -1, DedupeWindow: time.Microsecond, WaitReplicas: -1, WaitTimeout: -time.Second,
	})
	for _, name := range []string{"url", "mode", "maxlen", "dedupe_window", "wait_replicas", "wait_timeout"} {
		if !contains(err, name) {
			t.Errorf("%s is not in: %v", name, err)
		}
	}
	_, err = redissink.New(redissink.Config{URL: "redis://h", Mode: redissink.Publish, WaitReplicas: 1})
	if !contains(err, "wait_replicas") {
		t.Errorf("got %v; want an error about wait_replicas", err)
	}
}

func TestNew_InvalidStreamTemplate(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{"{topic", "orders:{}", "{topic}}", "a}b"} {
		if _, err := redissink.New(redissink.Config{URL: "redis://h", Stream: stream}); !contains(err, "hash tag") {
			t.Errorf("%q: got %v; want an error about the hash tag", stream, err)
		}
	}
}

func TestNew_InvalidTLS(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]redissink.Config{
		"tls.ca cannot be read":             {URL: "rediss://h", TLS: sink.TLS{CA: "/no/secret"}},
		"tls.cert or tls.key is missing":    {URL: "redis+cluster://h", TLS: sink.TLS{Cert: "x"}},
		"sentinel_password is used without": {URL: "redis+cluster://h", SentinelPassword: "secret"},
		"expected redis+sentinel:// in url": {URL: "redis://h", SentinelPassword: "secret"},
	} {
		if _, err := redissink.New(cfg); !contains(err, want) || contains(err, "secret ") {
			t.Errorf("got %v; want an error that contains %q", err, want)
		}
	}
}
