//go:build unix && !linux

package testserver

import "syscall"

// Only Linux signals a child when its parent exits.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}
