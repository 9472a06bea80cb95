package demo

import (
	"context"
	"fmt"
	"net"
	"strconv"
)

// consolePort is the first port that the console is tried on, consolePorts how many are tried. The first is not the default of relay run, which may run beside the demo. They are below those that systems give to
// outgoing connections, so that the port is still free when the relay starts again after its kill.
const (
	consolePort  = 7071
	consolePorts = 29
)

// consoleAddress returns a loopback address whose port is free, "" if there is none.
func consoleAddress(ctx context.Context) string {
	var listen net.ListenConfig
	for port := range consolePorts {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(consolePort+port))
		l, err := listen.Listen(ctx, "tcp", address)
		if err != nil {
			continue
		}
		if l.Close() == nil {
			return address
		}
	}
	return ""
}

// openConsole chooses the console's address and prints it.
func (d *Demo) openConsole(ctx context.Context) (address string, err error) {
	if !d.config.Console {
		return "", nil
	}
	text := fmt.Sprintf("No port from %d on is free, so there is no console.\n\n", consolePort)
	if address = consoleAddress(ctx); address != "" {
		text = fmt.Sprintf("Watch it in a browser: http://%s/\n\n", address)
	}
	_, err = d.screen.Write([]byte(text))
	return address, err
}
