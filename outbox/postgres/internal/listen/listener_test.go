package listen

import "testing"

// A Listener that did not listen for a moment reports it, so that the distributor counts the events
// that were committed meanwhile.
func TestListener_ReportsLapse(t *testing.T) {
	t.Parallel()
	l := New(Config{})
	expect := func(when string, signalled bool, commits int, listening bool) {
		t.Helper()
		select {
		case <-l.Notifications():
			if !signalled {
				t.Errorf("%s: it signals", when)
			}
		default:
			if signalled {
				t.Errorf("%s: it does not signal", when)
			}
		}
		if n, now := l.Drain(); n != commits || now != listening {
			t.Errorf("%s: got %d commits, listening %t", when, n, now)
		}
	}
	expect("at first", false, 0, false)
	l.onListening(t.Context())
	expect("listening", true, 0, true)
	l.onCommit()
	l.onCommit()
	expect("after two commits", true, 2, true)
	l.stopListening()
	l.onListening(t.Context())
	expect("after a lapse", true, 0, false)
	expect("after the lapse was reported", true, 0, true)
	expect("without news", false, 0, true)
	l.Pause(true)
	l.onListening(t.Context()) // the lock was obtained just now
	expect("paused", true, 0, false)
	l.Pause(false)
	l.onListening(t.Context())
	expect("resumed", true, 0, true)
}
