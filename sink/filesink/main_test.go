package filesink_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

const childEnv = "FILESINK_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := diskFull(os.Args[len(os.Args)-2], os.Args[len(os.Args)-1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testserver.Main(m)
}

// runAgain runs this program again as a child and returns what it printed.
func runAgain(t *testing.T, args ...string) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), program, args...)
	c.Env = append(os.Environ(), childEnv+"=1")
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("child: %v", err)
	}
	return string(out)
}
