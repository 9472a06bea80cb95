package cli

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/outboxrelay/relay/internal/testkit"
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

// onPTY is relay on a pseudo-terminal.
type onPTY struct {
	t          *testing.T
	cmd        *exec.Cmd
	controller *os.File
	said       output
}

// onTerminal starts relay on a terminal. It is killed at the end of the test.
func onTerminal(t *testing.T, args ...string) *onPTY {
	t.Helper()
	return onTerminalWith(t, nil, args...)
}

// onTerminalWith is onTerminal with additional environment variables.
func onTerminalWith(t *testing.T, env []string, args ...string) *onPTY {
	t.Helper()
	controller, terminal := pty(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &onPTY{t: t, controller: controller, cmd: exec.Command(self, args...)}
	p.cmd.Env = append(append(cleanEnv(), beRelay+"=1", "TERM=xterm"), env...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = terminal, terminal, terminal
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := terminal.Close(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		buffer := make([]byte, 4096)
		for {
			n, err := controller.Read(buffer)
			if _, werr := p.said.Write(buffer[:n]); err != nil || werr != nil { // EIO: the terminal was closed
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-read
		if err := controller.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(p.said.String())
		}
	})
	return p
}

// see waits until the terminal shows a text.
func (p *onPTY) see(text string) {
	p.t.Helper()
	testserver.Eventually(p.t, func() error {
		if !strings.Contains(p.said.String(), text) {
			return fmt.Errorf("the terminal does not show %q but\n%s", text, p.said.String())
		}
		return nil
	})
}

// answer types a line.
func (p *onPTY) answer(text string) {
	p.t.Helper()
	_, err := p.controller.WriteString(text + "\n")
	testkit.NoError(p.t, err)
}
