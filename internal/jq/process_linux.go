package jq

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// executable is this executable, also after an upgrade has replaced its file.
func executable() (string, error) {
	const self = "/proc/self/exe"
	if _, err := os.Stat(self); err == nil {
		return self, nil
	}
	return os.Executable()
}

// enlarge lets a pipe hold a usual batch, so that parent and child do not have to take turns.
func enlarge(pipe *os.File) {
	const setSize, size = 1031, 1 << 20 // F_SETPIPE_SZ; it may fail
	if conn, err := pipe.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { _, _, _ = syscall.Syscall(syscall.SYS_FCNTL, fd, setSize, size) })
	}
}

// limitMemory limits the private memory of this process, and reports whether it is limited. Go maps 64 MiB of address
// space at a time, and all that is mapped counts. The kernel counts what Go has reserved as mapped already, so one
// allocation may exceed the limit; the next mapping ends the process.
func limitMemory(bytes uint64) bool {
	mapped, ok := dataSize()
	if !ok {
		return false
	}
	most := mapped + bytes
	return syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: most, Max: most}) == nil
}

// dataSize is what the limit counts.
func dataSize() (size uint64, ok bool) {
	const field = 5 // data and stack, in pages
	text, err := os.ReadFile("/proc/self/statm")
	if fields := bytes.Fields(text); err == nil && len(fields) > field {
		pages, err := strconv.ParseUint(string(fields[field]), 10, 64)
		return pages * uint64(os.Getpagesize()), err == nil
	}
	return 0, false
}

// offerToKiller asks the kernel to kill this process first when memory runs out, rather than the relay.
func offerToKiller() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	_ = os.WriteFile("/proc/self/comm", []byte("relay-jq"), 0)
}
