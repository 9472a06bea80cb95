package testserver

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Ports of servers are below the range for outgoing connections, so that no connection takes the port
// of a stopped server, and no client connects to itself.
const (
	firstPort   = 12000
	ports       = 10000
	portBlock   = 200   // ports that one process has
	busDistance = 10000 // from a Redis server's port to its cluster bus
)

// ports of this process. Test processes run side by side: if each took any free port, two of them could
// take the same one before a server listens there, and one could take that of the other's stopped server.
var ownPorts struct {
	mu sync.Mutex
	// lock listens on the block's first port until the process ends: the block is of no other process.
	lock *net.TCPListener
	last int // port that was returned
}

// FreePort returns a port of 127.0.0.1 for a server; the port plus 10000 is free too, for a
// Redis cluster's bus. No other process gets the port before this one has ended, and this one gets it again
// after 199 others. It is safe for concurrent use.
func FreePort() (int, error) {
	p := &ownPorts
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lock == nil {
		var err error
		if p.lock, err = lockBlock(); err != nil {
			return 0, err
		}
	}
	first := p.lock.Addr().(*net.TCPAddr).Port
	var err error
	for range portBlock - 1 {
		p.last++
		if p.last <= first || p.last >= first+portBlock {
			p.last = first + 1
		}
		if err = errors.Join(tryPort(p.last), tryPort(p.last+busDistance)); err == nil {
			return p.last, nil
		}
	}
	return 0, fmt.Errorf("no free port on 127.0.0.1 from %d to %d: %w", first, first+portBlock-1, err)
}

// lockBlock returns a listener on the first port of a block that no other process has.
func lockBlock() (*net.TCPListener, error) {
	var err error
	for _, block := range rand.Perm(ports / portBlock) {
		var lock *net.TCPListener
		if lock, err = listen(firstPort + block*portBlock); err == nil {
			return lock, nil
		}
	}
	return nil, fmt.Errorf("no free ports on 127.0.0.1 from %d to %d: %w", firstPort, firstPort+ports-1, err)
}

func tryPort(port int) error {
	l, err := listen(port)
	if err != nil {
		return err
	}
	return l.Close()
}

func listen(port int) (*net.TCPListener, error) {
	return net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
}
