//go:build unix

package filesink_test

import "syscall"

// limitFileSize makes writes beyond so many bytes fail in this process.
func limitFileSize(bytes uint64) error {
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: bytes, Max: bytes})
}
