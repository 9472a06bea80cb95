package redissink_test

import (
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/sink/redissink"
)

func TestURLs(t *testing.T) {
	t.Parallel()
	for url, wrong := range map[string]string{
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
		"":                                   "begin with",
		"h:6379":                             "begin with",
		"http://h":                           "begin with",
		"redis+other://secret@h":             "begin with",
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
		"redis+cluster://h/1":                "only number 0",
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
			if wrong != "" {
				t.Errorf("%q is taken, want an error that says %q", url, wrong)
			}
		case wrong == "" || !strings.Contains(err.Error(), wrong):
			t.Errorf("%q: got %v, want an error that says %q", url, err, wrong)
		case strings.Contains(err.Error(), "cret"):
			t.Errorf("%q: the error shows a part of it: %v", url, err)
		}
	}
}

func TestEveryMistakeIsListed(t *testing.T) {
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
		t.Errorf("got %v, want that nobody can wait for what is published", err)
	}
}

func TestTemplateThatMakesNoStreamIsAMistake(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{"{topic", "orders:{}", "{topic}}", "a}b"} {
		if _, err := redissink.New(redissink.Config{URL: "redis://h", Stream: stream}); !contains(err, "hash tag") {
			t.Errorf("%q: got %v, want an error that explains", stream, err)
		}
	}
}
