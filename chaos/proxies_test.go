//go:build unix

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// beProxies in its environment makes the test program the proxies of one relay.
// They run in a separate process because toxiproxy leaks goroutines if a connection
// breaks during a transfer, and can hang there forever. Then the process is killed,
// which is one more broken connection.
const beProxies = "RELAY_CHAOS_PROXIES"

// order is a command to a process of proxies. The process answers each with a line:
// the error or "".
type order struct {
	Do               string // open, off, on, add, remove
	Proxy            string
	Listen, Upstream string
	Toxic            json.RawMessage // to add
	Name             string          // of the toxic to remove
}

// serveProxies executes commands until its input is closed.
func serveProxies() {
	zerolog.SetGlobalLevel(zerolog.Disabled)
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	all := map[string]*toxiproxy.Proxy{}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			return
		}
		var err error
		p := all[o.Proxy]
		switch o.Do {
		case "open":
			p = toxiproxy.NewProxy(server, o.Proxy, o.Listen, o.Upstream)
			if err = p.Start(); err == nil {
				all[o.Proxy] = p
			}
		case "off":
			p.Stop()
		case "on":
			if err = p.Start(); errors.Is(err, toxiproxy.ErrProxyAlreadyStarted) {
				err = nil // the process was replaced in between
			}
		case "add":
			_, err = p.Toxics.AddToxicJson(bytes.NewReader(o.Toxic))
		case "remove":
			if err = p.Toxics.RemoveToxic(context.Background(), o.Name); errors.Is(err, toxiproxy.ErrToxicNotFound) {
				err = nil
			}
		default:
			err = errors.New("unknown order")
		}
		said := ""
		if err != nil {
			said = fmt.Sprintf("%s %s: %v", o.Do, o.Proxy, err)
		}
		if err := out.Encode(said); err != nil {
			return
		}
	}
}

// proxies is a process with one proxy per server, for one relay.
type proxies struct {
	upstreams, listens map[string]string
	hung               func() // called each time the process had to be killed

	mu      sync.Mutex
	process *process
	in      io.WriteCloser
	answers chan string // closed when the process is gone
}

func (r *run) startProxies(upstreams map[string]string) *proxies {
	x := &proxies{upstreams: upstreams, listens: map[string]string{}, hung: func() { r.faults.add("proxies hung, killed") }}
	x.mu.Lock()
	defer x.mu.Unlock()
	r.check(x.launch())
	r.t.Cleanup(x.close)
	return x
}

func (x *proxies) address(server string) string { return x.listens[server] }

func (x *proxies) launch() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), beProxies+"=1")
	cmd.Stderr = os.Stderr
	theirs, in, err := os.Pipe()
	if err != nil {
		return err
	}
	out, said, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout = theirs, said
	x.process, err = launch(cmd)
	if err = errors.Join(err, theirs.Close(), said.Close()); err != nil {
		return errors.Join(err, in.Close(), out.Close())
	}
	x.in = in
	answers := make(chan string)
	x.answers = answers
	go func() {
		defer close(answers)
		defer out.Close()
		for lines := json.NewDecoder(out); ; {
			var line string
			if lines.Decode(&line) != nil {
				return
			}
			answers <- line
		}
	}()
	for server, upstream := range x.upstreams {
		if err := x.open(server, upstream); err != nil {
			return err
		}
	}
	return nil
}

// distance adds a realistic network latency. On the loopback a batch takes a
// millisecond, and hardly any kill would hit one.
var distance = json.RawMessage(`{"name": "distance", "type": "latency", "attributes": {"latency": 8, "jitter": 6}}`)

// open opens the proxy on its former port. The port is below those of outgoing
// connections, one of which could otherwise take it while the proxy is off.
func (x *proxies) open(server, upstream string) error {
	var err error
	for range 100 {
		listen := x.listens[server]
		if listen == "" {
			listen = fmt.Sprintf("127.0.0.1:%d", 9000+rand.IntN(3000))
		}
		if err = x.ask(order{Do: "open", Proxy: server, Listen: listen, Upstream: upstream}); err == nil {
			x.listens[server] = listen
			return x.ask(order{Do: "add", Proxy: server, Toxic: distance})
		}
	}
	return err
}

var errHung = errors.New("the proxies hang")

func (x *proxies) ask(o order) error {
	line, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if _, err := x.in.Write(line); err != nil {
		return errHung
	}
	select {
	case said, ok := <-x.answers:
		switch {
		case !ok:
			return errHung
		case said != "":
			return errors.New(said)
		}
		return nil
	case <-time.After(8 * time.Second): // toxiproxy itself waits up to 5 s for transfers
		return errHung
	}
}

// send sends a command. Proxies that hang are killed and replaced.
func (x *proxies) send(o order) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	err := x.ask(o)
	if !errors.Is(err, errHung) {
		return err
	}
	x.hung()
	x.end()
	return x.launch()
}

// end ends the process, which may have exited already.
func (x *proxies) end() {
	_ = x.process.cmd.Process.Signal(syscall.SIGKILL)
	<-x.process.ended
	_ = x.in.Close()
	for range x.answers { // its last words
	}
}

func (x *proxies) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.end()
}
