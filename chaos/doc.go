// Package chaos has one long test: relays are killed, stopped and resumed, servers
// restarted and connections cut while producers commit and roll back. At the end every
// event is accounted for by its id. TestFault has trials of faults that need a database, a
// sink or a configuration of their own, with the same account.
//
// `make chaos` runs both for ten minutes, `go test` for less than one. -chaos.seed draws
// the same faults again, but they do not hit at the same instructions.
package chaos
