//go:build unix

package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// relay runs `relay run`, one process after the other.
type relay struct {
	name, program, config, log string
	proxies                    *proxies

	process *process // nil: it does not run
	began   int64    // where its part of the log begins
}

func (p *relay) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return err
	}
	p.began = info.Size()
	cmd := exec.Command(p.program, "run", "-c", p.config)
	cmd.Env = environment()
	cmd.Stdout, cmd.Stderr = log, log
	if p.process, err = launch(cmd); err != nil {
		p.process = nil
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	_, err = fmt.Fprintf(log, "---- process %d\n", cmd.Process.Pid)
	return err
}

// died reports a process that ended unexpectedly, and starts another.
func (p *relay) died() (string, error) {
	if p.process != nil {
		select {
		case <-p.process.ended:
		default:
			return "", nil
		}
		return fmt.Sprintf("%s ended by itself: %v\n%s", p.name, p.process.cmd.ProcessState, p.said()), p.start()
	}
	return "", p.start()
}

// kill ends the process with SIGKILL, even if it is stopped.
func (p *relay) kill() error {
	if p.process == nil {
		return nil
	}
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	_, err := p.process.wait(endTimeout)
	p.process = nil
	return err
}

// endTimeout is generous: shutdown_timeout is 2 s, and then the relay waits up to 5 s for blocked
// work, but the machine may be busy.
const endTimeout = 2 * time.Minute

// end ends the process with SIGTERM and returns its exit status. A process that does
// not end is killed, and its log shows where it hung.
func (p *relay) end() (status int, err error) {
	// Before the first line of its log the process does not handle signals yet.
	for began := time.Now(); !bytes.Contains(p.said(), []byte("level=")) && time.Since(began) < endTimeout; {
		if _, err := p.process.wait(50 * time.Millisecond); err == nil {
			break
		}
	}
	if err := p.signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	status, err = p.process.wait(endTimeout)
	if err != nil {
		hangs := p.signal(syscall.SIGQUIT) // its log says where
		_, late := p.process.wait(endTimeout)
		return 0, errors.Join(err, hangs, late, p.kill())
	}
	p.process = nil
	return status, nil
}

// said returns the end of the process's log.
func (p *relay) said() []byte {
	text := p.logged()
	const most = 4000
	return text[max(0, len(text)-most):]
}

// logged returns the log of the process, without those before it.
func (p *relay) logged() []byte {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	return text[min(p.began, int64(len(text))):]
}

// ranOut reports whether the log says that shutdown_timeout expired.
func (p *relay) ranOut() bool { return bytes.Contains(p.logged(), []byte("shutdown_timeout (")) }

// leftBatch reports whether the last process says that it could not settle a batch, because PostgreSQL was away.
func (p *relay) leftBatch() bool {
	return bytes.Contains(p.logged(), []byte("was not settled, it will be taken over: settling a batch: cannot reach PostgreSQL"))
}

func (p *relay) signal(s syscall.Signal) error { return p.process.cmd.Process.Signal(s) }
