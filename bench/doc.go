// Package bench measures the relay on real servers and compares it with the loop that
// a good engineer would write instead: drain rate and cost per event, the effect of a
// pinned snapshot and of ten million waiting events, latency, the cost for the
// application, and the cost of an idle relay.
//
//	go test -run '^$' -bench Drain -benchtime 3x -v ./bench
//
// -v prints the tables. docs/performance.md describes each benchmark and its results.
// Timings are noisy and never decide a test: compare figures of one run. A benchmark
// fails if an event was lost, duplicated or left behind.
package bench
