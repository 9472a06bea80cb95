// Package cli is the command relay for a main function of one's own: with sinks that package sink.Register made known.
//
//	package main
//
//	import (
//		"github.com/outboxrelay/relay/cli"
//		_ "example.com/shop/kafkasink" // its init function calls sink.Register
//	)
//
//	func main() { cli.Main("") }
//
// A service that moves its own events uses package relay instead, at the top of this module.
package cli

import "github.com/outboxrelay/relay/internal/cli"

// Main runs the command that os.Args names, as the program relay does, and exits with its status: 0 done, 1 failed while
// running, 2 wrong usage or a wrong configuration. It handles the process's signals, reads its environment, and sets its default
// logger and Go's garbage collection, so call nothing else in main, and nothing from another goroutine. Schemes must be registered
// before.
//
// version is what `relay version` prints, like "v1.2.3"; "" means the version of the module of package main, as the Go
// command has built it in.
func Main(version string) { cli.Main(version) }
