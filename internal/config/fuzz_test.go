package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Parse never panics, never shows what it expanded, and its messages are one a
// line, with their place, in order.
func FuzzParse(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	secrets := []string{"pl4ntedS3cret", "pl4nted://S3cret@:?#{topic}\n"}
	line := regexp.MustCompile(`^f:[0-9]+:[0-9]+: [^\x00-\x1f]+$`)
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, secret := range secrets {
			env := func(string) (string, bool) { return secret, true }
			file := func(string) ([]byte, error) { return []byte(secret), nil }
			c, err := newReader("f", env, file).config(text)
			if (c == nil) == (err == nil) {
				t.Fatalf("config %v and error %v", c, err)
			}
			if err == nil {
				if printed := fmt.Sprintf("%v %+v %#v", c.Admin.Token, c.Pipelines[0].Source.URL, c.Pipelines[0].Sink.HTTP.Headers); strings.Contains(printed, "pl4nted") {
					t.Errorf("the secret is shown in %s", printed)
				}
				continue
			}
			var mistakes Errors
			if !errors.As(err, &mistakes) || !slices.IsSortedFunc(mistakes, func(a, b Error) int { return a.Place.compare(b.Place) }) {
				t.Errorf("not a sorted list of mistakes: %v", err)
			}
			for _, l := range strings.Split(err.Error(), "\n") {
				if !line.MatchString(l) {
					t.Errorf("not file:line:column: text: %q", l)
				}
				if strings.Contains(l, "pl4nted") && !strings.Contains(string(text), "pl4nted") {
					t.Errorf("the secret is shown in %s", l)
				}
			}
		}
	})
}
