package testkit

import (
	"runtime"
	"time"
)

// HeapGrowth returns a function that says by how much the heap has grown at most.
func HeapGrowth(t TB) func() uint64 {
	t.Helper()
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before := m.HeapAlloc
	done, most := make(chan struct{}), make(chan uint64)
	go func() {
		var peak uint64
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				peak = max(peak, m.HeapAlloc)
			case <-done:
				most <- peak - min(peak, before)
				return
			}
		}
	}()
	return func() uint64 { close(done); return <-most }
}
