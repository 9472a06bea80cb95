// Package bench measures the relay on real servers, beside the loop that a good
// engineer would write instead: how fast a backlog drains and what an event costs,
// what a pinned snapshot and ten million waiting events change, how soon an event
// arrives, what it takes from the application, and what an idle relay uses.
//
//	go test -run '^$' -bench Drain -benchtime 3x -v ./bench
//
// -v, because the tables are what to read. docs/performance.md says what each
// measures and what came out. Timings are noisy and never decide a test: compare
// figures of one run. What fails a benchmark is an event that was lost, came twice or
// was left behind.
package bench
