package admin_test

import (
	"testing"

	"github.com/outboxrelay/relay/internal/admin"
)

func TestWaitReport(t *testing.T) {
	t.Parallel()
	for want, w := range map[string]admin.WaitReport{
		"1 batch waits (1 event), due now: 503":                                                      {Error: "503", Batches: 1, Events: 1},
		"1 batch waits (1 event), due once the sink takes events (tried every few seconds): refused": {Error: "refused", Batches: 1, Events: 1, Early: true},
		"1 batch waits (2 events), due in 5s: 503":                                                   {Error: "503", Batches: 1, Events: 2, DueInSeconds: 5, LastDueInSeconds: 5},
		"2 batches wait (1,250 events), due in 1s to 5s: 503":                                        {Error: "503", Batches: 2, Events: 1250, DueInSeconds: 1, LastDueInSeconds: 5},
		"2 batches wait (2 events), due within 8.9s: 503":                                            {Error: "503", Batches: 2, Events: 2, LastDueInSeconds: 8.9},
		"2 batches wait (2 events), due once the sink takes events (tried every few seconds), in 4m 0s at the latest: 503": {
			Error: "503", Batches: 2, Events: 2, DueInSeconds: 1, LastDueInSeconds: 240, Early: true,
		},
	} {
		if got := w.Text(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
