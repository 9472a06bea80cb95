package sqlite

import (
	"testing"

	"pgregory.net/rapid"
)

// TestRoutedWith: the sets of numbers are those that a list of all numbers gives.
func TestRoutedWith(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const most = 12
		draw := func(name string) (r routedWith, has [most]bool) {
			for range rapid.IntRange(0, 6).Draw(t, name) {
				no, on := rapid.Int64Range(0, most-1).Draw(t, "from"), rapid.Bool().Draw(t, "routed")
				r = r.since(no, on)
				for i := no; i < most; i++ {
					has[i] = on
				}
			}
			return r, has
		}
		a, inA := draw("a")
		b, inB := draw("b")
		read, err := parseRouted(a.and(b).json())
		if err != nil {
			t.Fatal(err)
		}
		for i := range int64(most) {
			if a.has(i) != inA[i] || read.has(i) != (inA[i] || inB[i]) {
				t.Fatalf("number %d of %v and %v: %v, %v", i, a, b, a.has(i), read.has(i))
			}
		}
	})
}
