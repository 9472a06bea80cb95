package cli

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A slim build has neither SQLite nor the NATS server, and says so in one line.
func TestSlim(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "relay")
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", "slim", "-ldflags", "-s -w -X main.release=v1.2.3", "-o", binary, "../../cmd/relay")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), binary, args...)
		cmd.Env = []string{"RELAY_SOURCE_URL=sqlite:///tmp/absent.db", "RELAY_SINK_URL=stdout:"}
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	config := write(t, "pipelines: [{name: a, source: {url: 'sqlite:///tmp/absent.db'}, sink: {url: 'stdout:'}}]")
	for _, args := range [][]string{{"demo", "--events", "1"}, {"schema", "sqlite"}, {"check", "-c", config}, {"run", "-c", config}, {"init"}} {
		if out := run(args...); !strings.Contains(out, "built without") || strings.Count(out, "\n") != 1 {
			t.Errorf("relay %s: got %q", strings.Join(args, " "), out)
		}
	}
	if out := run("version"); !strings.HasPrefix(out, "relay v1.2.3") {
		t.Errorf("got %q", out)
	}
	list, err := exec.CommandContext(t.Context(), "go", "list", "-tags", "slim", "-deps", "../../cmd/relay").CombinedOutput()
	if err != nil || strings.Contains(string(list), "modernc.org/sqlite") || strings.Contains(string(list), "nats-server") {
		t.Errorf("%v: a slim build has SQLite or the NATS server", err)
	}
}
