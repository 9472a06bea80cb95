// Command relay moves events from a table in an application's database to Redis,
// NATS, HTTP or a file. "relay help" lists its commands.
package main

import "github.com/outboxrelay/relay/cli"

// release is the version; set by the linker (-X main.release=v1.2.3).
var release string

func main() { cli.Main(release) }
