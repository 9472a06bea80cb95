package postgres

import "testing"

// A bell that did not hear for a moment says so, however short that was: whoever is told
// looks for what was committed meanwhile.
func TestABellTellsOfALapse(t *testing.T) {
	t.Parallel()
	l := (&Buffer{}).Bell(nil)
	expect := func(when string, rings bool, commits int, hears bool) {
		t.Helper()
		select {
		case <-l.Notifications():
			if !rings {
				t.Errorf("%s: it has something to say", when)
			}
		default:
			if rings {
				t.Errorf("%s: it has nothing to say", when)
			}
		}
		if n, now := l.Drain(); n != commits || now != hears {
			t.Errorf("%s: %d commits, hears: %t", when, n, now)
		}
	}
	expect("at first", false, 0, false)
	l.hear()
	expect("when it begins to hear", true, 0, true)
	l.ring()
	l.ring()
	expect("after two commits", true, 2, true)
	l.silence()
	l.hear()
	expect("after a lapse", true, 0, false)
	expect("and again", true, 0, true)
	expect("and then", false, 0, true)
	l.Pause(true)
	l.hear() // the lock was just got
	expect("muted", true, 0, false)
	l.Pause(false)
	l.hear()
	expect("muted no more", true, 0, true)
}
