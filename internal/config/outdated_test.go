package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOutdated: a file that was replaced concerns the section that it was expanded in, and nothing else.
func TestOutdated(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"database", "a", "b", "program", "hook"} {
		put(name, "first content of "+name)
	}
	file := func(name string) string { return "${file:" + filepath.Join(folder, name) + "}" }
	c := parseGood(t, `
pipelines:
  - name: p
    source: {url: 'postgres://app:`+file("database")+`@db/app'}
    sinks:
      - name: a
        url: https://a.example
        bearer: '`+file("a")+`'
        request: '{key: $secret["file:`+filepath.Join(folder, "program")+`"], events}'
        dead_letter: {hook: {url: 'https://hook.example', bearer: '`+file("hook")+`'}}
      - {name: b, url: 'https://b.example', bearer: '`+file("b")+`'}
`)
	p := &c.Pipelines[0]
	sinks := p.PerSink()
	says := func(want map[string]string) {
		t.Helper()
		for name, ask := range map[string]func(class string) string{
			"pipeline": p.outdatedFor(&p.Sink), "a": sinks[0].outdatedFor(&sinks[0].Sink), "b": sinks[1].outdatedFor(&sinks[1].Sink), "hook": sinks[0].outdatedFor(sinks[0].DeadLetter.Hook),
		} {
			for _, class := range []string{"database", "sink", "refusing", "stalled"} {
				got, _, _ := strings.Cut(ask(class), " changed since the relay started at 2")
				if got = strings.ReplaceAll(got, folder+"/", ""); got != want[name+" "+class] {
					t.Errorf("%s, which is not ready for class %s, says %q, want %q", name, class, got, want[name+" "+class])
				}
			}
		}
	}
	says(nil)
	put("a", "  first content of a\n")
	says(nil)
	put("a", "second content of a")
	put("program", "second content of program")
	says(map[string]string{"a sink": "a and program", "a refusing": "a and program"})
	put("a", "first content of a")
	put("program", "first content of program")
	put("hook", "second content of hook")
	says(map[string]string{"hook sink": "hook", "hook refusing": "hook"})
	if err := os.Remove(filepath.Join(folder, "hook")); err != nil {
		t.Fatal(err)
	}
	put("database", "second content of database")
	says(map[string]string{"pipeline database": "database", "a database": "database", "b database": "database", "hook database": "database"})
}
