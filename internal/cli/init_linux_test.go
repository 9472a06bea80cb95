package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/outboxrelay/relay/internal/testserver"
)

// pty is a pseudo-terminal. A program on the terminal reads what is written to the controller.
func pty(t *testing.T) (controller, terminal *os.File) {
	t.Helper()
	controller, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	ioctl := func(request, argument uintptr) {
		t.Helper()
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, controller.Fd(), request, argument); errno != 0 {
			t.Fatal(errno)
		}
	}
	var number uint32
	unlocked := int32(0)
	ioctl(syscall.TIOCSPTLCK, uintptr(unsafe.Pointer(&unlocked)))
	ioctl(syscall.TIOCGPTN, uintptr(unsafe.Pointer(&number)))
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return controller, terminal
}

// On a terminal init asks, reports an invalid answer, and asks again.
func TestInit_Questions(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	db.exec(activities + "; CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE pairs (a int, b int, PRIMARY KEY (a, b))")
	path := filepath.Join(t.TempDir(), "relay.yaml")
	controller, terminal := pty(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "init", "-o", path)
	cmd.Env = append(cleanEnv(), beRelay+"=1", "RELAY_SOURCE_URL="+db.url, "TERM=xterm")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := terminal.Close(); err != nil {
		t.Fatal(err)
	}
	var said output
	read := make(chan struct{})
	go func() {
		defer close(read)
		buffer := make([]byte, 4096)
		for {
			n, err := controller.Read(buffer)
			if _, werr := said.Write(buffer[:n]); err != nil || werr != nil { // EIO: the terminal was closed
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-read
		if err := controller.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(said.String())
		}
	})
	for _, step := range []struct{ says, answer string }{
		{"1  contact_activity_events  has a group_id, refers to contact_activities", "pairs"},
		{"table pairs cannot hold events: its primary key has 2 columns", "orders"},
		{"The relay deletes each row of orders after delivery. Does the table hold nothing but events?", "n"},
		{"choose another table", ""},
		{"\x1b[1mSink: ", "htp://bob:s3cret@x"},
		{"sink.url has an unknown scheme; expected ", "http://bob:s3cret@localhost/bulk"},
		{"How many events does a request to the API take at most? (1 to 1000000)\x1b[0m [100]", "0"},
		{"the number of events is 0; expected a number from 1 to 1000000", "50"},
		{"Pipeline name, of a-z, 0-9, _ and -\x1b[0m [contact_activity_events]", ""},
	} {
		testserver.Eventually(t, func() error {
			if !strings.Contains(said.String(), step.says) {
				return fmt.Errorf("init does not say %q but\n%s", step.says, said.String())
			}
			return nil
		})
		if _, err := controller.WriteString(step.answer + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, said.String())
	}
	golden(t, "asked", path)
}
