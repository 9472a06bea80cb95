//go:build unix

package demo

import "syscall"

// ownGroup keeps Ctrl-C, which a terminal sends to the whole group, from a child: the demo decides when it ends.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
