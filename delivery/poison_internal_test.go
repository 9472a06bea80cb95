package delivery

import (
	"testing"

	"github.com/google/uuid"
)

// TestPoisonDetector_RecordsAgainAfterForget: the detector has forgotten its only batch when the next
// outage comes.
func TestPoisonDetector_RecordsAgainAfterForget(t *testing.T) {
	t.Parallel()
	var d poisonDetector
	for range 2 {
		batch := uuid.New()
		for i := range confirmAfter {
			if confirmed := d.record(batch, "", answered, false); confirmed != (i == confirmAfter-1) {
				t.Fatalf("outage %d is confirmed: %t", i+1, confirmed)
			}
			d.accepted("")
		}
		d.forget(batch)
		if d.any() {
			t.Fatal("a forgotten batch is remembered")
		}
	}
}
