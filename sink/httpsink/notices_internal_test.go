package httpsink

import (
	"testing"
	"testing/synctest"
	"time"
)

// A notice about an answer that does not come any more ends.
func TestNotices_End(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Sink{}
		s.odd.add(&response{status: 422}, 2, "1")
		<-time.After(halvedFor - time.Second)
		if len(s.Notices()) != 1 {
			t.Error("it ends too early")
		}
		<-time.After(time.Second)
		if len(s.Notices()) != 0 {
			t.Error("it does not end")
		}
	})
}
