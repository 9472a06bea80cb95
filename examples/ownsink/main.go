// Command ownsink is the command relay with one more sink: inbox://, which copies events into a table of another PostgreSQL database.
package main

import (
	"github.com/outboxrelay/relay/cli"
	_ "github.com/outboxrelay/relay/examples/ownsink/inbox" // registers the scheme
)

func main() { cli.Main("") }
