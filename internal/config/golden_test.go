package config

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files and docs/configuration.md anew")

// environment is what the files in testdata find when they are expanded.
var environment = map[string]string{
	"PGPASSWORD":        "p@ss/w:rd?#%",
	"DATABASE_URL":      "postgres://whole:wh0leS3cret@db.example:5433/shop?sslmode=require",
	"RELAY_ADMIN_TOKEN": "t0kenS3cret",
	"HOOK_URL":          "https://hooks.example/T0/p4thS3cret?sig=qu3ryS3cret",
	"WORKERS":           "8",
	"EAGER":             "false",
	"LEASE":             "1m30s",
	"NOT_A_NUMBER":      "n0tANumberS3cret",
	"EMPTY":             "",
	"YAML":              "x\nlog: {level: debug}",
	"TRICK":             "a, workers: 99}",
	"ODD_SCHEME":        "sch3meS3cret://host",
	"BINARY":            "\xff\xfe",
}

func lookup(name string) (string, bool) {
	value, set := environment[name]
	return value, set
}

func parseFile(t *testing.T, path string) (*Config, error) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return Parse(filepath.Base(path), text, lookup)
}

func files(t *testing.T, pattern string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(all) == 0 {
		t.Fatalf("no %s in testdata: %v", pattern, err)
	}
	return all
}

func TestGoodFiles_AreAccepted(t *testing.T) {
	t.Parallel()
	for _, path := range files(t, "*.good.yaml") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			if _, err := parseFile(t, path); err != nil {
				t.Errorf("unexpected errors\n%v", err)
			}
		})
	}
}

// Every bad file has a text file with the expected errors.
func TestBadFiles_AreRejected(t *testing.T) {
	t.Parallel()
	for _, path := range files(t, "*.bad.yaml") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			c, err := parseFile(t, path)
			var list Errors
			if c != nil || !errors.As(err, &list) {
				t.Fatalf("got %v, %v; want Errors and no Config", c, err)
			}
			sorted := slices.IsSortedFunc(list, func(a, b Error) int { return a.Place.compare(b.Place) })
			if !sorted {
				t.Error("the mistakes are not sorted by place")
			}
			got := err.Error() + "\n"
			showsNoSecret(t, got)
			golden := strings.TrimSuffix(path, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
		})
	}
}

// Every secret in the environment and in testdata contains this.
func showsNoSecret(t *testing.T, printed string) {
	t.Helper()
	for _, s := range []string{"S3cret", "p@ss", "p%40ss", "ss/w:rd"} {
		if strings.Contains(printed, s) {
			t.Errorf("the secret %s is shown in\n%s", s, printed)
		}
	}
}
