//go:build !unix

package filesink

import "io/fs"

// noFollow is empty where the system has no such flag; the check before opening must do.
const noFollow = 0

// The system has no such link counts and modes.
func names(fs.FileInfo) int { return 1 }

func othersMayWrite(fs.FileInfo) bool { return false }
