package bench

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// natsFolder is an environment variable. It makes the test binary a NATS server with
// its files in that folder.
const natsFolder = "RELAY_BENCH_NATS"

// serveNATS serves until its input is closed, which happens however its parent ends.
func serveNATS(dir string) {
	server, err := testserver.StartNATS(dir)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer server.Stop()
	fmt.Println(server.URL)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		os.Exit(1)
	}
}

// startNATS runs a server in a separate process. In this process its CPU time would
// count as the relay's.
func startNATS(b *testing.B) (url string, pid int) {
	b.Helper()
	self, err := os.Executable()
	testkit.NoError(b, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), natsFolder+"="+b.TempDir())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	testkit.NoError(b, err)
	out, err := cmd.StdoutPipe()
	testkit.NoError(b, err)
	testkit.NoError(b, cmd.Start())
	b.Cleanup(func() {
		testkit.NoError(b, in.Close())
		testkit.NoError(b, cmd.Wait())
	})
	url, err = bufio.NewReader(out).ReadString('\n')
	testkit.NoError(b, err)
	if !strings.HasPrefix(url, "nats://") {
		b.Fatal(url)
	}
	return strings.TrimSpace(url), cmd.Process.Pid
}
