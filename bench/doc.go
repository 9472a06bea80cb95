// Package bench measures the relay on real servers: how fast a backlog drains to
// each sink beside what the SQL alone can do in the same run, the WAL an event
// costs, and what a relay uses while it holds a backlog and while it is idle.
//
// `make bench` runs it. Timings are noisy and never decide a test: compare
// figures of one run.
package bench
