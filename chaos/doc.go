// Package chaos is one long test: relays are killed, stopped and resumed, servers
// restarted and connections cut while producers commit and roll back, and in the
// end every event is accounted for by its id. See `make chaos`.
package chaos
