//go:build unix

package filesink

import (
	"io/fs"
	"syscall"
)

// noFollow makes opening a symbolic link fail.
const noFollow = syscall.O_NOFOLLOW

// names is how many names (hard links) a file has.
func names(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Nlink)
	}
	return 1
}

// othersMayWrite reports whether the mode lets others than the owner write.
func othersMayWrite(info fs.FileInfo) bool { return info.Mode()&0o022 != 0 }
