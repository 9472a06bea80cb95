//go:build unix && !linux

package testserver

import "syscall"

// Only Linux tells a child that its parent died.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}
