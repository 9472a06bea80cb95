package inserttest

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
)

// TestDependencies holds what an application that only inserts has to build: pgx with its own dependencies, and the
// standard library. The modules of the packages' own tests count as well, because they get into the application's go.sum.
func TestDependencies(t *testing.T) {
	t.Parallel()
	const relay = "github.com/outboxrelay/relay"
	pgx := []string{"github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile", "github.com/jackc/pgx/v5", "golang.org/x/text"}
	for _, c := range []struct {
		pkg     string
		builds  []string // modules
		ofTests []string
	}{
		{pkg: "outbox", ofTests: []string{"pgregory.net/rapid"}},
		{pkg: "outbox/sqliteoutbox"},
		{pkg: "outbox/pgoutbox", builds: pgx, ofTests: []string{"github.com/jackc/puddle/v2", "golang.org/x/sync"}}, // of pgxpool
	} {
		allowed := slices.Concat(c.builds, c.ofTests)
		for _, flag := range []string{"-test=false", "-test"} {
			list := exec.CommandContext(t.Context(), "go", "list", "-deps", flag, "-f", "{{if not .Standard}}{{.ImportPath}} {{with .Module}}{{.Path}}{{end}}{{end}}", relay+"/"+c.pkg)
			list.Stderr = os.Stderr
			out, err := list.Output()
			testkit.NoError(t, err)
			var modules []string
			for line := range strings.Lines(string(out)) {
				pkg, module := strings.Fields(line)[0], ""
				if fields := strings.Fields(line); len(fields) > 1 {
					module = fields[len(fields)-1]
				}
				switch {
				case module != relay:
					modules = append(modules, module)
				case pkg != relay+"/outbox" && !strings.HasPrefix(pkg, relay+"/outbox/internal/sqlname") && !strings.HasPrefix(pkg, relay+"/"+c.pkg):
					t.Errorf("go list -deps %s %s: %s; expected outbox only", flag, c.pkg, pkg)
				}
			}
			slices.Sort(modules)
			want := c.builds
			if flag == "-test" {
				want = allowed
			}
			slices.Sort(want)
			testkit.Equal(t, c.pkg+" "+flag, strings.Join(slices.Compact(modules), " "), strings.Join(want, " "))
		}
	}
}
